/* fleet.h - `weft bench fleet`: latency and bandwidth between each pair of hosts, and the slow links.
 *
 *   fleet.c         options
 *   fleet_rank.c    one rank: measures its links with each other rank, in rounds of disjoint pairs
 *   fleet_hosts.c   starts a rank on each host by a remote shell and reads the rows of rank 0
 *   fleet_matrix.c  the matrix as tables, JSON rows and heat map; which links are slow
 */
#ifndef WEFT_TOOLS_BENCH_FLEET_FLEET_H
#define WEFT_TOOLS_BENCH_FLEET_FLEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { FLEET_HOSTS_MAX = 256, FLEET_NAME_BYTES = 64, FLEET_WAY_BYTES = 64, FLEET_EXIT_SLOW = 3 };

struct fleet_options {
    uint32_t processes; /* on this host; 0: take part in the job of the environment */
    const char *remote_shell, *program, *name, *plot;
    uint64_t bytes;        /* of a message of the bandwidth */
    uint32_t ms;           /* of one measurement of bandwidth */
    uint32_t slow_percent; /* of the median; 0: no link is slow */
    uint32_t port, deadline_s;
    bool serial, json;
    char **hosts;
    uint32_t host_count;
};

/* -1: continue; otherwise the exit status. argv[0] is "fleet". */
int fleet_options_parse(struct fleet_options *options, int argc, char **argv);
/* Takes part in the job of the environment; rank 0 prints. Returns the exit status: 0 also with a slow
 * link. */
int fleet_run_rank(const struct fleet_options *options);
/* Starts a rank on each of options->hosts and prints. Returns the exit status: FLEET_EXIT_SLOW with a slow
 * link. */
int fleet_run_hosts(const struct fleet_options *options);

struct fleet_matrix {
    uint32_t count;
    char (*names)[FLEET_NAME_BYTES]; /* owned (count,) */
    bool is_one_host;                /* all ranks: no link is slow, since all have the same memory */
    double *gbps, *us;               /* owned (count, count): from the host of the row; NAN: not measured */
    char (*ways)[FLEET_WAY_BYTES];   /* owned (count, count): transport of a link; "": unknown */
};

/* False: out of memory. */
bool fleet_matrix_init(struct fleet_matrix *matrix, uint32_t count);
void fleet_matrix_free(struct fleet_matrix *matrix);
/* Median of the bandwidth of all links, GB/s; 0: none. */
double fleet_matrix_median(const struct fleet_matrix *matrix);
bool fleet_matrix_is_slow(const struct fleet_matrix *matrix, uint32_t from, uint32_t to, uint32_t percent);
/* The transport of most links. */
const char *fleet_matrix_common_way(const struct fleet_matrix *matrix);
/* Prints a line for each host of which all links in one direction are slow, and for each other slow link.
 * Returns the number of slow links. */
uint32_t fleet_matrix_diagnose(const struct fleet_matrix *matrix, uint32_t percent, FILE *out);
/* Prints the whole result as the options require. Returns the exit status: FLEET_EXIT_SLOW
 * with a slow link. */
int fleet_matrix_report(const struct fleet_matrix *matrix, const struct fleet_options *options);

#endif
