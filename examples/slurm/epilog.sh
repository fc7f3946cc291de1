#!/bin/bash
# slurm.conf: Epilog=/etc/slurm/epilog.d/rankpatrol.sh
# Ends what the job left on this node, where it is proven to be the job's and nobody's any more. Exit code 2 says that something holds a
# GPU and would not go: Slurm drains a node whose Epilog fails. Anything else (a time-out, no NVML) is no reason to drain a node.
# That the job has ended here is kept in /var/lib/rankpatrol/ended-jobs: prolog.sh goes by it.
timeout 50 rankpatrol orphans --reap --yes --job "$SLURM_JOB_ID" --epilog
[ $? -ne 2 ]
