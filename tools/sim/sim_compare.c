/* sim_compare.c - accuracy of the simulation on this host: the same operation, measured by `weft bench`. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/sim/sim.h"

/* Takes the figures of messages from a link table: the worst link between its hosts, and that within the
 * first host. */
bool sim_links_load(struct sim_settings *settings, const char *path)
{
    struct weft_link_table *table;
    struct weft_error error = {0};
    struct weft_link_cost cost;
    if (weft_link_table_load(weft_env_system(), path, &table, &error) < 0) {
        fprintf(stderr, "weft sim: --links %s: %s\n", path,
                error.text[0] ? error.text : "there is no such file");
        return false;
    }
    uint32_t count = weft_link_table_host_count(table), *hosts = calloc(count + 1, sizeof *hosts);
    for (uint32_t i = 0; hosts && i < count; i++) hosts[i] = i;
    if (hosts && count == 1) hosts[count++] = 0;
    bool known = hosts && weft_link_cost_among(table, hosts, count, 1 << 18, &cost) == WEFT_OK &&
                 cost.bytes_per_second > 0;
    if (known)
        settings->latency_ns = cost.latency_ns, settings->bytes_per_second = (double)cost.bytes_per_second;
    else fprintf(stderr, "weft sim: --links %s: no link of it works\n", path);
    free(hosts);
    weft_link_table_free(table);
    return known;
}

static double median_us(FILE *in)
{
    char line[8192];
    double found = -1;
    while (fgets(line, sizeof line, in)) {
        json_t *row = json_loads(line, 0, NULL);
        const json_t *value = json_object_get(row, "p50_us");
        if (json_is_number(value)) found = json_number_value(value);
        json_decref(row);
    }
    return found;
}

bool sim_measure_transport(const struct sim_settings *settings, enum weft_plan_id plan, double *seconds_out)
{
    char self[1024], command[1600];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || strchr(self, '\''))
        return fprintf(stderr, "weft sim: cannot find this program\n"), false;
    self[length] = 0;
    snprintf(command, sizeof command,
             "'%s' bench %s -n %u -b %llu -e %llu --plan %s --transport %s --json -c 0", self,
             weft_coll_kind_name(settings->kind), settings->ranks, (unsigned long long)settings->bytes,
             (unsigned long long)settings->bytes, weft_plan_name(plan), settings->compare_transport);
    fflush(stdout);
    FILE *in = popen(command, "r");
    double us = in ? median_us(in) : -1;
    int status = in ? pclose(in) : -1;
    if (status == 0 && us > 0) return *seconds_out = us / 1e6, true;
    return fprintf(stderr, "weft sim: could not measure: %s\n", command), false;
}
