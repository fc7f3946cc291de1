"""The agent beside a training: where the rooms meet. It may be killed and started again; it goes on from what is written down."""
