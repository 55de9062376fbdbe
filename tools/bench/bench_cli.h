/* bench_cli.h - lines of the option tables (tools/cli.h) that several benchmarks have. */
#ifndef WEFT_TOOLS_BENCH_BENCH_CLI_H
#define WEFT_TOOLS_BENCH_BENCH_CLI_H

#include "tools/cli.h"
#include "tools/common.h"
#include "tools/size.h"

#define BENCH_PROCESSES_OPTION(place, most)                                                \
    {                                                                                      \
        "processes", 'n', "N",                                                             \
            "processes to start on this host; 0: take part in the job of the environment", \
            CLI_U32(place, 0, most)                                                        \
    }
#define BENCH_TRANSPORT_OPTION                                                            \
    {                                                                                     \
        "transport", 0, "NAME", "auto, shm, verbs, tcp, ucx, or lanes of UCX such as rc", \
            "as configured: auto", CLI_CALL(bench_set_transport, NULL)                    \
    }
#define BENCH_JSON_OPTION(place)                                                         \
    {                                                                                    \
        "json", 0, NULL, "one JSON object per row instead of the table", CLI_FLAG(place) \
    }

/* Applies --transport to this process and to those that it starts, shards included: sets the variables of the
 * environment that a user would set. */
cli_set bench_set_transport;

#endif
