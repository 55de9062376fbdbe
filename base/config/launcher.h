/* launcher.h - rank, ranks and coordinator from the environment of an MPI launcher, torchrun or Slurm.
 *
 *   torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or anything that sets these four); optional:
 *              LOCAL_WORLD_SIZE. LOCAL_RANK without these four is incomplete, too
 *   mpirun     OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and _SIZE (MPICH)
 *   srun       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_ID, SLURM_STEP_NODELIST
 *   PMIx       PMIX_RANK, PMIX_NAMESPACE; the number of ranks from WEFT_RANKS
 *   Kubernetes JOB_COMPLETION_INDEX of an indexed Job, or the ordinal of a StatefulSet at the end of
 *              HOSTNAME; only if the coordinator is known or WEFT_RANKS is set: other pods are no ranks.
 *              With WEFT_HEADLESS_SERVICE the coordinator is pod 0
 *
 * The first launcher with complete variables and a coordinator is used. Invalid values are an error.
 * Incomplete variables are an error unless another launcher's are complete: a process that ignored them would
 * train alone. */
#ifndef WEFT_BASE_CONFIG_LAUNCHER_H
#define WEFT_BASE_CONFIG_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "weft/status.h"

#define WEFT_LAUNCHER_RANKS_MAX 4096u

struct weft_launcher {
    const char *name;      /* "torchrun", "mpirun", "srun", "PMIx"; static */
    const char *needs;     /* names of its variables, for messages; static */
    uint32_t rank;
    uint32_t ranks;        /* 0: unknown */
    /* Address of the job's coordinator, "host:port", equal in all its processes; "": unknown. The port is the
     * first of weft_launcher_port: after MASTER_PORT, which the launcher's own store uses, or from 20,000 to
     * 31,999 and derived from the job's name. The host is loopback if all processes are on one host by the
     * launcher's count, otherwise MASTER_ADDR or the first host of Slurm's list. */
    char coordinator[288];
    char job[80];          /* unique to this job: another job at the same port is refused */
};

/* If a port of the coordinator is in use, rank 0 takes the next of these, and the other ranks find it there.
 * They are far apart: neighbours of MASTER_PORT belong to other jobs of the same user. */
#define WEFT_LAUNCHER_PORTS 4u
/* The port number k, from 0, of a list that begins with `first`. */
uint16_t weft_launcher_port(uint16_t first, uint32_t k);

/* WEFT_ERR_NOT_FOUND: no launcher started this process; *error is unchanged. WEFT_ERR_INVALID: variables are
 * incomplete or invalid; the text names the variable, its value and the remedy. coordinator_known: the caller
 * needs only the rank, so MASTER_ADDR and MASTER_PORT are not read and `coordinator` may be "". Writes *out
 * only on WEFT_OK. Any thread. */
enum weft_status weft_launcher_find(bool coordinator_known, struct weft_launcher *out,
                                    struct weft_error *error);

/* The number of this pod: JOB_COMPLETION_INDEX of an indexed Job, or the ordinal of a StatefulSet (HOSTNAME
 * ends in -N, in a cluster). false: it has none. *source_out, which may be NULL: the variable; static. */
bool weft_launcher_ordinal(uint32_t *ordinal_out, const char **source_out);

/* The host name of pod 0 of this Job or StatefulSet: "NAME-0.SERVICE", where SERVICE is the headless service
 * in WEFT_HEADLESS_SERVICE and NAME that of HOSTNAME before the ordinal. WEFT_ERR_NOT_FOUND: a variable is
 * missing. WEFT_ERR_INVALID: it is not a name of DNS; the text has the variable and its value. */
#define WEFT_LAUNCHER_HOST_BYTES 256
enum weft_status weft_launcher_pod_zero(char host_out[WEFT_LAUNCHER_HOST_BYTES], struct weft_error *error);

#endif
