#!/bin/bash
# slurm.conf: HealthCheckProgram=/usr/local/sbin/rankpatrol-health  HealthCheckInterval=300  HealthCheckNodeState=IDLE,CYCLE
# The node's patrol between jobs: a GPU that a dead job holds takes the node out of service, with a reason that says so. Jobs that run
# there go on. What was seen is remembered: a sight now and one at the next check are two.
# slurmd ends a HealthCheckProgram after 60 s.
node=${SLURMD_NODENAME:-$(hostname -s)}
timeout 50 rankpatrol orphans --scans 3 > /dev/null 2>&1
if [ $? -eq 2 ]; then
  scontrol update NodeName="$node" State=DRAIN Reason="rankpatrol: GPU memory held by a dead job (rankpatrol orphans)"
fi
exit 0
