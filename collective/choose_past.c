/* choose_past.c - from which length on sums of the one-host plan are stored past the caches (host_past.c), and with it where the model of that plan
 * (choose_host.c) goes from one rate to the other: both ask here, so that neither can change without the other. Pure. */
#include "collective/plan.h"

enum { LAST_LEAST = 32 << 20, LAST_MOST = 128 << 20 };

uint64_t plan_one_host_last_bytes(uint64_t last_bytes) { return last_bytes < LAST_LEAST ? LAST_LEAST : last_bytes > LAST_MOST ? LAST_MOST : last_bytes; }

uint64_t plan_one_host_sums_past(uint64_t last_bytes, uint64_t own_bytes)
{
    uint64_t share = plan_one_host_last_bytes(last_bytes) / 4, beyond_own = PLAN_ONE_HOST_PAST_OWN * own_bytes;
    return share > beyond_own ? share : beyond_own;
}
