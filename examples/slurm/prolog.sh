#!/bin/bash
# slurm.conf: Prolog=/etc/slurm/prolog.d/rankpatrol.sh
# Before a job gets this node: is a GPU still held by one that is gone? A Prolog that fails drains the node and queues the job again, so
# only what is certain counts (exit code 2), and a look that takes too long passes.
timeout 20 rankpatrol orphans --scans 2 > /dev/null 2>&1
[ $? -ne 2 ]
