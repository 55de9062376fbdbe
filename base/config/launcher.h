/* launcher.h - what an MPI launcher, torchrun or Slurm says of this process in its environment: the one place
 * that reads it.
 *
 *   torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or anything that sets these four)
 *   mpirun     OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and _SIZE (MPICH)
 *   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_ID, SLURM_STEP_NODELIST
 *   PMIx       PMIX_RANK; it does not say how many there are
 *
 * The first launcher with complete variables and a coordinator is used. Invalid values are an error.
 * Incomplete variables are an error unless another launcher's are complete: a process that ignored them
 * would train alone. */
#ifndef WEFT_BASE_CONFIG_LAUNCHER_H
#define WEFT_BASE_CONFIG_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "weft/status.h"

#define WEFT_LAUNCHER_RANKS_MAX 4096u

struct weft_launcher {
    const char *name;      /* "torchrun", "mpirun", "srun", "PMIx"; static */
    const char *needs;     /* the names of its variables, for messages; static */
    uint32_t rank;
    uint32_t ranks;        /* 0: not known */
    /* Where this job's coordinator is to be found, "host:port", the same in all its processes; "": this
     * cannot be told. MASTER_ADDR, at the port behind MASTER_PORT, which the launcher's own store has;
     * else loopback, where all processes are on one host, or the first host of srun's list, at a port
     * between 20,000 and 31,999 made from the job's number. */
    char coordinator[288];
    char job[80];          /* a name that only this job has: another one at the same port is refused */
};

/* NOT_FOUND: no launcher started this process; *error is unchanged. INVALID: a launcher's variables are
 * incomplete or invalid; the text names the variable, its value and what to do. `coordinator_known`: the
 * caller needs only the rank, so MASTER_ADDR and MASTER_PORT are not read and `coordinator` may be "".
 * Writes *out only with OK. Any thread. */
enum weft_status weft_launcher_find(bool coordinator_known, struct weft_launcher *out,
                                    struct weft_error *error);

#endif
