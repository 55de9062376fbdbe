/* origin.c - see origin.h. */
#include "tools/bench/lib/origin.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "proto/proto.h"
#include "tools/revision.h"

void bench_origin_read(struct bench_origin *origin)
{
    *origin = (struct bench_origin){.version = weft_proto_release(), .revision = WEFT_REVISION};
    if (gethostname(origin->host, sizeof origin->host - 1) != 0) snprintf(origin->host, 2, "-");
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(origin->date, sizeof origin->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
