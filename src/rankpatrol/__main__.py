"""Entry: `python -m rankpatrol`."""

from rankpatrol.cli.main import main

main()
