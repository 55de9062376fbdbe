/* launcher.h - what an MPI launcher, torchrun or Slurm says of this process in its environment: the one place that reads it.
 *
 *   torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or anything that sets these four)
 *   mpirun     OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and _SIZE (MPICH)
 *   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_ID, SLURM_STEP_NODELIST
 *   PMIx       PMIX_RANK; it does not say how many there are
 *
 * The first of these counts. Variables that are there but are not what the launcher writes count as not there. */
#ifndef WEFT_BASE_LAUNCHER_H
#define WEFT_BASE_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

struct weft_launcher {
    const char *name;      /* "torchrun", "mpirun", "srun", "PMIx"; static */
    uint32_t rank;
    uint32_t ranks;        /* 0: not known */
    /* Where this job's coordinator is to be found, "host:port", the same in all its processes; "": this cannot be told.
     * MASTER_ADDR, at the port behind MASTER_PORT, which the launcher's own store has; else loopback, where all processes are
     * on one host, or the first host of srun's list, at a port between 20,000 and 31,999 made from the job's number. */
    char coordinator[288];
    char job[80];          /* a name that only this job has: another one at the same port is refused */
};

/* False: no launcher started this process, and *out is untouched. Any thread. */
bool weft_launcher_find(struct weft_launcher *out);

#endif
