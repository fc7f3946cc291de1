#!/bin/bash
# slurm.conf: Prolog=/etc/slurm/prolog.d/rankpatrol.sh
# Before a job gets this node: does one that ended here still hold a GPU? Known by the words that epilog.sh kept, so no Slurm command is
# called. A Prolog that fails drains the node and queues the job again, so only what is certain counts (exit code 2: it would not go), and
# a look that takes too long passes. Slurm allows 10 s as shipped (BatchStartTimeout). To look only, leave out --reap --yes.
timeout 9 rankpatrol orphans --reap --yes --job "$SLURM_JOB_ID" --prolog
[ $? -ne 2 ]
