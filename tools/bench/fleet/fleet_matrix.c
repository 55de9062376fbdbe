/* fleet_matrix.c - see fleet.h. A link is slow in comparison with the median of all links. If all links from
 * or to a host are slow, its port is the likely cause, and the host is named instead of its links. */
#include "tools/bench/fleet/fleet.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/lib/heat.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/svg.h"
#include "tools/size.h"

enum { CELL_MIN = 8, WAYS_MAX = 16, LINES_MAX = 20 };

bool fleet_matrix_init(struct fleet_matrix *matrix, uint32_t count)
{
    const size_t cells = (size_t)count * count;
    *matrix = (struct fleet_matrix){.count = count,
                                    .names = calloc(count, sizeof *matrix->names),
                                    .gbps = malloc(cells * sizeof(double)),
                                    .us = malloc(cells * sizeof(double)),
                                    .ways = calloc(cells, sizeof *matrix->ways)};
    if (!matrix->names || !matrix->gbps || !matrix->us || !matrix->ways) {
        fleet_matrix_free(matrix);
        fprintf(stderr, "weft bench fleet: out of memory\n");
        return false;
    }
    for (size_t i = 0; i < cells; i++) matrix->gbps[i] = matrix->us[i] = NAN;
    return true;
}

void fleet_matrix_free(struct fleet_matrix *matrix)
{
    free(matrix->names);
    free(matrix->gbps);
    free(matrix->us);
    free(matrix->ways);
    *matrix = (struct fleet_matrix){0};
}

/* ---- transports ---- */

static const char *way_of(const struct fleet_matrix *matrix, uint32_t from, uint32_t to)
{
    return matrix->ways[(size_t)from * matrix->count + to];
}

const char *fleet_matrix_common_way(const struct fleet_matrix *matrix)
{
    const char *ways[WAYS_MAX]; /* further ones are rare, and not counted */
    uint32_t counts[WAYS_MAX] = {0}, way_count = 0, best = 0;
    for (uint32_t from = 0; from < matrix->count; from++) {
        for (uint32_t to = 0; to < matrix->count; to++) {
            uint32_t i = 0;
            if (from == to) continue;
            while (i < way_count && strcmp(ways[i], way_of(matrix, from, to)) != 0) i++;
            if (i == WAYS_MAX) continue;
            if (i == way_count) ways[way_count++] = way_of(matrix, from, to);
            counts[i]++;
            if (counts[i] > counts[best]) best = i;
        }
    }
    return way_count ? ways[best] : "";
}

/* ---- slow links ---- */

static double cell(const struct fleet_matrix *matrix, const double *values, uint32_t from, uint32_t to)
{
    return values[(size_t)from * matrix->count + to];
}

static double median_of(const struct fleet_matrix *matrix, const double *values)
{
    return bench_median_finite(values, (size_t)matrix->count * matrix->count);
}

double fleet_matrix_median(const struct fleet_matrix *matrix)
{
    return median_of(matrix, matrix->gbps);
}

static bool is_slow(const struct fleet_matrix *matrix, uint32_t from, uint32_t to, double limit)
{
    return from != to && cell(matrix, matrix->gbps, from, to) < limit; /* false for NAN */
}

bool fleet_matrix_is_slow(const struct fleet_matrix *matrix, uint32_t from, uint32_t to, uint32_t percent)
{
    return is_slow(matrix, from, to, 0.01 * percent * fleet_matrix_median(matrix));
}

/* Whether all links from (outgoing) or to a host are slow; two hosts have one link in each direction. */
static bool is_slow_host(const struct fleet_matrix *matrix, uint32_t host, bool outgoing, double limit)
{
    uint32_t slow = 0;
    for (uint32_t other = 0; other < matrix->count; other++)
        slow += is_slow(matrix, outgoing ? host : other, outgoing ? other : host, limit);
    return matrix->count > 2 && slow == matrix->count - 1;
}

static double mean_of_host(const struct fleet_matrix *matrix, uint32_t host, bool outgoing)
{
    double sum = 0;
    for (uint32_t other = 0; other < matrix->count; other++)
        if (other != host)
            sum += cell(matrix, matrix->gbps, outgoing ? host : other, outgoing ? other : host);
    return sum / (matrix->count - 1);
}

static void print_host(const struct fleet_matrix *matrix, uint32_t host, bool from, bool to, double median,
                       FILE *out)
{
    const double gbps = mean_of_host(matrix, host, from);
    fprintf(out,
            "slow host: %s: every link %s it is slow, %.3f GB/s on average, %.0f %% of the median %.3f GB/s; "
            "check its port, cable and switch port, and run weft doctor there\n",
            matrix->names[host],
            from && to ? "from and to"
            : from     ? "from"
                       : "to",
            gbps, 100 * gbps / median, median);
}

/* The transport is named if it is not that of most links: then it is the likely cause. */
static void print_link(const struct fleet_matrix *matrix, uint32_t from, uint32_t to, bool both,
                       double median, FILE *out)
{
    const bool is_other = strcmp(way_of(matrix, from, to), fleet_matrix_common_way(matrix)) != 0;
    double gbps = cell(matrix, matrix->gbps, from, to);
    if (both) gbps = fmin(gbps, cell(matrix, matrix->gbps, to, from));
    fprintf(out,
            "slow link: %s %s %s: %.3f GB/s, %.0f %% of the median %.3f GB/s%s%s; check the path between the "
            "two (cable, switch, route), and run weft doctor %s on %s\n",
            matrix->names[from], both ? "<->" : "->", matrix->names[to], gbps, 100 * gbps / median, median,
            is_other ? ", over " : "", is_other ? way_of(matrix, from, to) : "", matrix->names[to],
            matrix->names[from]);
}

uint32_t fleet_matrix_diagnose(const struct fleet_matrix *matrix, uint32_t percent, FILE *out)
{
    const double median = fleet_matrix_median(matrix), limit = 0.01 * percent * median;
    bool slow_from[FLEET_HOSTS_MAX], slow_to[FLEET_HOSTS_MAX];
    uint32_t count = 0;
    for (uint32_t host = 0; host < matrix->count; host++) {
        slow_from[host] = is_slow_host(matrix, host, true, limit);
        slow_to[host] = is_slow_host(matrix, host, false, limit);
        if (slow_from[host] || slow_to[host])
            print_host(matrix, host, slow_from[host], slow_to[host], median, out);
    }
    for (uint32_t from = 0; from < matrix->count; from++) {
        for (uint32_t to = 0; to < matrix->count; to++) {
            const bool slow = is_slow(matrix, from, to, limit), back = is_slow(matrix, to, from, limit);
            const bool by_host = slow_from[from] || slow_to[to],
                       back_by_host = slow_from[to] || slow_to[from];
            count += slow;
            if (!slow || by_host || (back && !back_by_host && to < from)) continue;
            print_link(matrix, from, to, back && !back_by_host, median, out);
        }
    }
    return count;
}

/* ---- output ---- */

static void print_values(const struct fleet_matrix *matrix, const double *values, const char *title,
                         int digits)
{
    int name_width = 0, width = CELL_MIN;
    for (uint32_t i = 0; i < matrix->count; i++) {
        const int bytes = (int)strlen(matrix->names[i]);
        name_width = bytes > name_width ? bytes : name_width;
    }
    width = name_width + 1 > width ? name_width + 1 : width;
    printf("#\n# %s, from the host of the row to the host of the column\n  %-*s", title, name_width, "");
    for (uint32_t to = 0; to < matrix->count; to++) printf("%*s", width, matrix->names[to]);
    putchar('\n');
    for (uint32_t from = 0; from < matrix->count; from++) {
        printf("  %-*s", name_width, matrix->names[from]);
        for (uint32_t to = 0; to < matrix->count; to++) {
            const double value = cell(matrix, values, from, to);
            if (isfinite(value)) printf("%*.*f", width, digits, value);
            else printf("%*s", width, "-");
        }
        putchar('\n');
    }
}

static void print_rows(const struct fleet_matrix *matrix, const struct fleet_options *options,
                       uint32_t percent)
{
    const double limit = 0.01 * percent * fleet_matrix_median(matrix);
    for (uint32_t from = 0; from < matrix->count; from++) {
        for (uint32_t to = 0; to < matrix->count; to++) {
            if (from == to) continue;
            bench_row_print(
                stdout,
                json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:b}", "bench", "fleet", "from",
                          matrix->names[from], "to", matrix->names[to], "transport", way_of(matrix, from, to),
                          "ranks", (json_int_t)matrix->count, "bytes", (json_int_t)options->bytes, "avg_GBps",
                          cell(matrix, matrix->gbps, from, to), "latency_us",
                          cell(matrix, matrix->us, from, to), "slow", is_slow(matrix, from, to, limit)),
                8);
        }
    }
}

/* Links of another transport than most, at most LINES_MAX. */
static void print_other_ways(const struct fleet_matrix *matrix, const char *common)
{
    uint32_t found = 0;
    for (uint32_t from = 0; from < matrix->count; from++) {
        for (uint32_t to = 0; to < matrix->count; to++) {
            if (from == to || strcmp(way_of(matrix, from, to), common) == 0 || found++ >= LINES_MAX) continue;
            printf("# other transport: %s -> %s: %s\n", matrix->names[from], matrix->names[to],
                   way_of(matrix, from, to));
        }
    }
    if (found > LINES_MAX) printf("# other transport: %" PRIu32 " further links\n", found - LINES_MAX);
}

static void print_tables(const struct fleet_matrix *matrix, const struct fleet_options *options)
{
    char size[24];
    const char *common = fleet_matrix_common_way(matrix);
    tool_size_format(options->bytes, size, sizeof size);
    printf("# weft bench fleet: %" PRIu32 " hosts, messages of %s, transport %s%s\n", matrix->count, size,
           common, options->serial ? ", one pair at a time" : ", disjoint pairs at once");
    print_other_ways(matrix, common);
    print_values(matrix, matrix->gbps, "bandwidth (GB/s)", 3);
    print_values(matrix, matrix->us, "latency (us)", 1);
    printf("#\n# median: %.3f GB/s, %.1f us\n", fleet_matrix_median(matrix), median_of(matrix, matrix->us));
}

static bool draw(const void *heat, FILE *out)
{
    return bench_heat_write(heat, out);
}

static bool plot(const struct fleet_matrix *matrix, const char *path)
{
    const char *names[FLEET_HOSTS_MAX];
    char title[80];
    for (uint32_t i = 0; i < matrix->count; i++) names[i] = matrix->names[i];
    snprintf(title, sizeof title, "Bandwidth from row to column, %" PRIu32 " hosts (GB/s)", matrix->count);
    const struct bench_heat heat = {title, fleet_matrix_common_way(matrix), names, matrix->gbps,
                                    matrix->count};
    return bench_svg_write_file("weft bench fleet", path, draw, &heat);
}

int fleet_matrix_report(const struct fleet_matrix *matrix, const struct fleet_options *options)
{
    const uint32_t percent = matrix->is_one_host ? 0 : options->slow_percent;
    if (options->json) print_rows(matrix, options, percent);
    else print_tables(matrix, options);
    const uint32_t slow = fleet_matrix_diagnose(matrix, percent, options->json ? stderr : stdout);
    if (slow == 0 && !options->json && percent > 0)
        printf("no link is below %" PRIu32 " %% of the median\n", percent);
    const bool drawn = !options->plot || plot(matrix, options->plot);
    if (!bench_flush_output("fleet") || !drawn) return 1;
    return slow ? FLEET_EXIT_SLOW : 0;
}
