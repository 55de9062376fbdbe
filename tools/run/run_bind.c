/* run_bind.c - see run_bind.h. */
#include "tools/run/run_bind.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 8 * sizeof(unsigned long) };

static bool has_cpu(const struct run_cpus *cpus, uint32_t cpu)
{
    return cpus->words[cpu / WORD_BITS] >> cpu % WORD_BITS & 1;
}
static void add(struct run_cpus *cpus, uint32_t cpu)
{
    cpus->words[cpu / WORD_BITS] |= 1ul << cpu % WORD_BITS;
}

bool run_bind_parse(const char *text, enum run_bind *how_out)
{
    static const char *const words[] = {
        [RUN_BIND_NONE] = "none", [RUN_BIND_CORE] = "core", [RUN_BIND_AUTO] = "auto"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *how_out = (enum run_bind)i;
        return true;
    }
    return false;
}

/* ---- cores of this host ---- */

static FILE *open_topology(const char *sys, uint32_t cpu, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cpu%u/topology/%s", sys, cpu, name);
    return fopen(path, "re");
}

static uint32_t socket_of(const char *sys, uint32_t cpu)
{
    unsigned socket = 0;
    FILE *file = open_topology(sys, cpu, "physical_package_id");
    if (!file) return 0;
    if (fscanf(file, "%u", &socket) != 1) socket = 0;
    fclose(file);
    return socket;
}

/* Adds the processors of the core of `cpu` that are in `usable`. The file has the form "0-1,64". */
static void add_siblings(const char *sys, uint32_t cpu, const struct run_cpus *usable, struct run_cpus *cpus)
{
    FILE *file = open_topology(sys, cpu, "thread_siblings_list");
    unsigned first, last;
    while (file && fscanf(file, "%u", &first) == 1) {
        int next = fgetc(file);
        last = first;
        if (next == '-' && fscanf(file, "%u", &last) == 1) next = fgetc(file);
        for (unsigned i = first; i <= last && i < RUN_CPUS_MAX; i++)
            if (has_cpu(usable, i)) add(cpus, i);
        if (next != ',') break;
    }
    if (file) fclose(file);
}

static int compare_cores(const void *a, const void *b)
{
    const struct run_core *one = a, *other = b;
    if (one->socket != other->socket) return one->socket < other->socket ? -1 : 1;
    return one->first < other->first ? -1 : one->first > other->first;
}

struct run_core *run_bind_cores(const char *sys, uint32_t *count_out)
{
    struct run_cpus usable = {{0}}, taken = {{0}};
    struct run_core *cores = NULL;
    uint32_t count = 0, capacity = 0;
    if (sched_getaffinity(0, sizeof usable, (cpu_set_t *)usable.words) != 0) return NULL;
    for (uint32_t cpu = 0; cpu < RUN_CPUS_MAX; cpu++) {
        if (!has_cpu(&usable, cpu) || has_cpu(&taken, cpu)) continue;
        if (count == capacity) {
            struct run_core *more = realloc(cores, (capacity = 2 * capacity + 8) * sizeof *cores);
            if (!more) {
                free(cores);
                return NULL;
            }
            cores = more;
        }
        struct run_core *core = &cores[count++];
        *core = (struct run_core){.socket = socket_of(sys, cpu), .first = cpu};
        add(&core->cpus, cpu);
        add_siblings(sys, cpu, &usable, &core->cpus);
        for (size_t i = 0; i < sizeof taken.words / sizeof taken.words[0]; i++)
            taken.words[i] |= core->cpus.words[i];
    }
    qsort(cores, count, sizeof *cores, compare_cores);
    *count_out = count;
    return cores;
}

/* ---- cores of each worker ---- */

bool run_bind_assign(enum run_bind how, const struct run_core *cores, uint32_t core_count, uint32_t workers,
                     uint32_t index, struct run_cpus *cpus_out)
{
    if (how == RUN_BIND_NONE || core_count < workers) return false;
    uint32_t first = how == RUN_BIND_CORE ? index : (uint32_t)((uint64_t)core_count * index / workers);
    uint32_t next =
        how == RUN_BIND_CORE ? index + 1 : (uint32_t)((uint64_t)core_count * (index + 1) / workers);
    *cpus_out = (struct run_cpus){{0}};
    for (uint32_t core = first; core < next; core++)
        for (size_t i = 0; i < sizeof cpus_out->words / sizeof cpus_out->words[0]; i++)
            cpus_out->words[i] |= cores[core].cpus.words[i];
    return true;
}

bool run_bind_apply(const struct run_cpus *cpus)
{
    return sched_setaffinity(0, sizeof *cpus, (const cpu_set_t *)cpus->words) == 0;
}
