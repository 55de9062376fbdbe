/* topology.c - builds nodes, links, ports and distances from the sections of a file.
 *
 * Groups first ([host], [switch]: a number of nodes under one name), then [link] sections, which connect
 * two groups by a pattern. Errors (an unknown group, an unreachable host) name the line. */
#include <stdio.h>
#include <string.h>

#include "transport/sim/topology.h"

struct group {
    const char *name;
    bool host;
    uint32_t first, count; /* indices of hosts or of switches */
};

struct builder {
    struct topology_text text;
    struct weft_topology *topology;
    struct group *groups;
    uint32_t group_count, link_capacity;
    const char **cables; /* names of the [link] sections */
    uint32_t *port_host; /* (links,) host of a port, by its outgoing link; UINT32_MAX: no port */
};

static const struct weft_topology defaults = {
    .burst_bytes = 64 << 10,
    .timeout_ns = 1000000,
    .retry_count = 10,
};

/* ---- groups ---- */

static enum weft_status add_group(struct builder *builder, const struct topology_section *section, bool host)
{
    struct topology_text *text = &builder->text;
    uint64_t count = 1;
    if (!section->name[0])
        return topology_bad(text, section->line, "it needs a name: write [%s NAME]", section->kind);
    if (section->name[strcspn(section->name, "[]:- \t")])
        return topology_bad(text, section->line, "a name has no brackets, colons, dashes or spaces");
    for (uint32_t i = 0; i < builder->group_count; i++) {
        if (strcmp(builder->groups[i].name, section->name) == 0)
            return topology_bad(text, section->line, "there is a %s already; choose another name",
                                section->name);
    }
    WEFT_TRY(
        topology_count(text, section, "count", 1, host ? TOPOLOGY_HOSTS_MAX : TOPOLOGY_SWITCHES_MAX, &count));
    WEFT_TRY(topology_all_used(text, section, "count"));
    uint32_t *total = host ? &builder->topology->host_count : &builder->topology->switch_count;
    uint32_t most = host ? TOPOLOGY_HOSTS_MAX : TOPOLOGY_SWITCHES_MAX;
    if (count > most - *total)
        return topology_bad(text, section->line, "more than %u %s in all", most, host ? "hosts" : "switches");
    builder->groups[builder->group_count++] = (struct group){section->name, host, *total, (uint32_t)count};
    *total += (uint32_t)count;
    return WEFT_OK;
}

/* "leaf", "leaf[3]", "leaf[0-7]" -> the nodes. */
static enum weft_status find_nodes(struct builder *builder, const char *value, int line,
                                   struct topology_range *range_out, bool *host_out)
{
    size_t bytes = strcspn(value, "[");
    for (uint32_t i = 0; i < builder->group_count; i++) {
        const struct group *group = &builder->groups[i];
        if (strlen(group->name) != bytes || memcmp(group->name, value, bytes) != 0) continue;
        unsigned first = 0, last = group->count - 1;
        int used = 0;
        bool one = value[bytes] && sscanf(value + bytes, "[%u]%n", &first, &used) == 1 && used > 0 &&
                   !value[bytes + (size_t)used];
        if (one) last = first;
        bool many = value[bytes] && !one &&
                    (used = 0, sscanf(value + bytes, "[%u-%u]%n", &first, &last, &used) == 2) && used > 0 &&
                    !value[bytes + (size_t)used];
        if ((value[bytes] && !one && !many) || first > last || last >= group->count) {
            return topology_bad(&builder->text, line,
                                "%.60s: write %s, or %s[0] to %s[%u], or a range such as %s[0-%u]", value,
                                group->name, group->name, group->name, group->count - 1, group->name,
                                group->count - 1);
        }
        *range_out = (struct topology_range){
            (group->host ? 0 : builder->topology->host_count) + group->first + first, last - first + 1};
        *host_out = group->host;
        return WEFT_OK;
    }
    return topology_bad(&builder->text, line, "there is no [host] or [switch] of the name %.60s", value);
}

static enum weft_status nodes_setting(struct builder *builder, const struct topology_section *section,
                                      const char *name, struct topology_range *range_out, bool *host_out)
{
    int line;
    const char *value = topology_setting(&builder->text, section, name, &line);
    if (!value)
        return topology_bad(&builder->text, section->line, "[%s %s] needs %s = NAME of a host or switch",
                            section->kind, section->name, name);
    return find_nodes(builder, value, line, range_out, host_out);
}

/* ---- links ---- */

static enum weft_status add_cable(struct builder *builder, const struct topology_link *like, uint32_t from,
                                  uint32_t to, bool from_host, bool to_host)
{
    struct weft_topology *topology = builder->topology;
    if (topology->link_count + 2 > builder->link_capacity) {
        uint32_t capacity = builder->link_capacity ? builder->link_capacity * 2 : 256;
        struct topology_link *links = weft_alloc_array(topology->env, capacity, sizeof *links);
        uint32_t *hosts = weft_alloc_array(topology->env, capacity, sizeof *hosts);
        if (!links || !hosts) {
            weft_free_bytes(topology->env, links);
            weft_free_bytes(topology->env, hosts);
            return WEFT_ERR_NO_MEMORY;
        }
        if (topology->link_count > 0) {
            memcpy(links, topology->links, topology->link_count * sizeof *links);
            memcpy(hosts, builder->port_host, topology->link_count * sizeof *hosts);
        }
        weft_free_bytes(topology->env, topology->links);
        weft_free_bytes(topology->env, builder->port_host);
        topology->links = links;
        builder->port_host = hosts;
        builder->link_capacity = capacity;
    }
    for (int back = 0; back < 2; back++) {
        struct topology_link *link = &topology->links[topology->link_count];
        *link = *like;
        link->from = back ? to : from;
        link->to = back ? from : to;
        bool port = back ? to_host : from_host;
        builder->port_host[topology->link_count++] = port ? link->from : UINT32_MAX;
        topology->port_count += port;
    }
    return WEFT_OK;
}

enum pattern { PATTERN_BLOCK, PATTERN_SPREAD, PATTERN_RAIL, PATTERN_PAIR, PATTERN_FULL };

struct join {
    struct topology_range from, to;
    bool from_host, to_host;
    uint32_t rails, parallel;
    enum pattern pattern;
};

/* Index of the `to` node connected to port k (of `rails` per node). */
static uint32_t partner(const struct join *join, uint32_t port)
{
    uint32_t ports = join->from.count * join->rails, targets = join->to.count;
    if (join->pattern == PATTERN_SPREAD) return port % targets;
    if (join->pattern == PATTERN_PAIR) return port;
    if (join->pattern == PATTERN_RAIL) {
        uint32_t pods = targets / join->rails, per_pod = (join->from.count + pods - 1) / pods;
        return port / join->rails / per_pod * join->rails + port % join->rails;
    }
    return port / ((ports + targets - 1) / targets);
}

static enum weft_status read_pattern(struct topology_text *text, const struct topology_section *section,
                                     struct join *join)
{
    static const char *const names[] = {"block", "spread", "rail", "pair", "full"};
    int line = section->line;
    uint64_t rails = 1, parallel = 1;
    const char *value = topology_setting(text, section, "pattern", &line);
    join->pattern = PATTERN_BLOCK;
    if (value) {
        uint32_t i = 0;
        while (i < 5 && strcmp(names[i], value) != 0) i++;
        if (i == 5)
            return topology_bad(text, line, "pattern is block, spread, rail, pair or full, not %.40s", value);
        join->pattern = (enum pattern)i;
    }
    WEFT_TRY(topology_count(text, section, "rails", 1, 64, &rails));
    WEFT_TRY(topology_count(text, section, "parallel", 1, 256, &parallel));
    join->rails = (uint32_t)rails;
    join->parallel = (uint32_t)parallel;
    uint32_t ports = join->from.count * join->rails;
    if (join->rails > 1 && !join->from_host)
        return topology_bad(text, line, "rails are of hosts: `from` must be a host");
    if (join->to_host && !join->from_host)
        return topology_bad(text, line, "write the host as `from` and the switch as `to`");
    if (join->pattern == PATTERN_PAIR && ports != join->to.count) {
        return topology_bad(text, line, "pattern pair joins equal numbers of ends: here %u and %u", ports,
                            join->to.count);
    }
    if (join->pattern == PATTERN_RAIL && join->to.count % join->rails != 0) {
        return topology_bad(text, line,
                            "pattern rail needs a number of switches that %u rails divide, not %u",
                            join->rails, join->to.count);
    }
    return WEFT_OK;
}

static enum weft_status add_link(struct builder *builder, const struct topology_section *section)
{
    struct topology_text *text = &builder->text;
    struct topology_link like = {.cable = builder->topology->cable_count, .latency_ns = 500};
    struct join join;
    double rate = 12.5e9;
    WEFT_TRY(nodes_setting(builder, section, "from", &join.from, &join.from_host));
    WEFT_TRY(nodes_setting(builder, section, "to", &join.to, &join.to_host));
    WEFT_TRY(read_pattern(text, section, &join));
    WEFT_TRY(topology_rate(text, section, "rate", &rate));
    WEFT_TRY(topology_time(text, section, "latency", &like.latency_ns));
    WEFT_TRY(topology_time(text, section, "jitter", &like.jitter_ns));
    WEFT_TRY(topology_size(text, section, "buffer", &like.buffer_bytes));
    WEFT_TRY(topology_chance(text, section, "loss", &like.loss));
    WEFT_TRY(topology_chance(text, section, "duplicate", &like.duplicate));
    WEFT_TRY(topology_all_used(
        text, section, "from, to, pattern, rails, parallel, rate, latency, jitter, buffer, loss, duplicate"));
    like.ns_per_byte = 1e9 / rate;
    uint32_t ports = join.from.count * join.rails, each = join.pattern == PATTERN_FULL ? join.to.count : 1;
    if ((uint64_t)ports * each * join.parallel * 2 > TOPOLOGY_LINKS_MAX - builder->topology->link_count) {
        return topology_bad(text, section->line, "more than %d links in all", TOPOLOGY_LINKS_MAX / 2);
    }
    for (uint32_t port = 0; port < ports; port++) {
        for (uint32_t k = 0; k < each * join.parallel; k++) {
            uint32_t from = join.from.first + port / join.rails;
            uint32_t to =
                join.to.first + (join.pattern == PATTERN_FULL ? k / join.parallel : partner(&join, port));
            if (from == to && join.from_host == join.to_host) continue;
            WEFT_TRY(add_cable(builder, &like, from, to, join.from_host, join.to_host));
        }
    }
    snprintf(builder->topology->cable_names[builder->topology->cable_count], TOPOLOGY_CABLE_NAME_BYTES, "%s",
             section->name);
    builder->cables[builder->topology->cable_count++] = section->name;
    return WEFT_OK;
}

/* ---- the other sections ---- */

static enum weft_status read_settings(struct builder *builder, const struct topology_section *section,
                                      struct topology_link *local)
{
    struct topology_text *text = &builder->text;
    struct weft_topology *topology = builder->topology;
    double rate = 50e9;
    const char *name = topology_setting(text, section, "name", NULL);
    if (name) snprintf(topology->name, sizeof topology->name, "%s", name);
    WEFT_TRY(topology_size(text, section, "burst", &topology->burst_bytes));
    WEFT_TRY(topology_rate(text, section, "local_rate", &rate));
    WEFT_TRY(topology_time(text, section, "local_latency", &local->latency_ns));
    WEFT_TRY(topology_time(text, section, "detect", &topology->detect_ns));
    local->ns_per_byte = 1e9 / rate;
    if (topology->burst_bytes < 256) topology->burst_bytes = 256;
    return topology_all_used(text, section, "name, burst, local_rate, local_latency, detect");
}

static enum weft_status read_reliable(struct builder *builder, const struct topology_section *section)
{
    struct topology_text *text = &builder->text;
    struct weft_topology *topology = builder->topology;
    uint64_t retries = topology->retry_count;
    WEFT_TRY(topology_size(text, section, "window", &topology->window_bytes));
    WEFT_TRY(topology_time(text, section, "timeout", &topology->timeout_ns));
    WEFT_TRY(topology_count(text, section, "retries", 0, 100, &retries));
    topology->retry_count = (uint32_t)retries;
    return topology_all_used(text, section, "window, timeout, retries");
}

static enum weft_status hosts_setting(struct builder *builder, const char *value, int line,
                                      struct topology_range *range_out)
{
    bool host;
    WEFT_TRY(find_nodes(builder, value, line, range_out, &host));
    return host ? WEFT_OK : topology_bad(&builder->text, line, "%.60s is a switch: name a host", value);
}

static enum weft_status cut_setting(struct builder *builder, const char *value, int line,
                                    struct topology_fault *fault)
{
    char first[64];
    size_t bytes = strcspn(value, ":");
    if (!value[bytes] || bytes >= sizeof first)
        return topology_bad(&builder->text, line, "cut takes two groups of hosts: cut = east:west");
    memcpy(first, value, bytes);
    first[bytes] = 0;
    WEFT_TRY(hosts_setting(builder, first, line, &fault->a));
    return hosts_setting(builder, value + bytes + 1, line, &fault->b);
}

/* [fault NAME] at = 5ms, one of kill, slow (with factor), cut, down, and until. */
static enum weft_status add_fault(struct builder *builder, const struct topology_section *section)
{
    struct topology_text *text = &builder->text;
    struct topology_fault *fault = &builder->topology->faults[builder->topology->fault_count++];
    *fault = (struct topology_fault){.until_ns = WEFT_NEVER, .factor = 10};
    static const char *const kinds[] = {"kill", "slow", "cut", "down"};
    uint64_t factor = fault->factor;
    for (int i = 0; i < 4; i++) {
        int line;
        const char *value = topology_setting(text, section, kinds[i], &line);
        if (!value) continue;
        if (fault->kind)
            return topology_bad(
                text, line,
                "one fault is one of kill, slow, cut, down; write another [fault] for the second");
        fault->kind = (enum topology_fault_kind)(i + 1);
        if (fault->kind == TOPOLOGY_CUT) WEFT_TRY(cut_setting(builder, value, line, fault));
        else if (fault->kind != TOPOLOGY_DOWN) WEFT_TRY(hosts_setting(builder, value, line, &fault->a));
        while (fault->kind == TOPOLOGY_DOWN && fault->cable < builder->topology->cable_count &&
               strcmp(builder->cables[fault->cable], value) != 0)
            fault->cable++;
        if (fault->kind == TOPOLOGY_DOWN && fault->cable == builder->topology->cable_count) {
            return topology_bad(text, line, "there is no [link] of the name %.60s above", value);
        }
    }
    if (!fault->kind)
        return topology_bad(text, section->line, "a fault needs one of kill, slow, cut or down");
    WEFT_TRY(topology_time(text, section, "at", &fault->at_ns));
    WEFT_TRY(topology_time(text, section, "until", &fault->until_ns));
    WEFT_TRY(topology_count(text, section, "factor", 1, 1000000, &factor));
    fault->factor = (uint32_t)factor;
    if (fault->until_ns <= fault->at_ns) return topology_bad(text, section->line, "until must be after at");
    return topology_all_used(text, section, "at, until, kill, slow, factor, cut, down");
}

static enum weft_status read_sections(struct builder *builder, struct topology_link *local)
{
    static const char *const kinds[] = {"host", "switch", "topology", "reliable", "link", "fault"};
    struct topology_text *text = &builder->text;
    for (uint32_t i = 0; i < text->section_count; i++) {
        uint32_t k = 0;
        while (k < 6 && strcmp(kinds[k], text->sections[i].kind) != 0) k++;
        if (k == 6)
            return topology_bad(
                text, text->sections[i].line,
                "[%.40s] is unknown: a section is host, switch, link, fault, topology or reliable",
                text->sections[i].kind);
    }
    for (uint32_t k = 0; k < 6; k++) { /* groups before links, links before faults */
        for (uint32_t i = 0; i < text->section_count; i++) {
            const struct topology_section *section = &text->sections[i];
            if (strcmp(kinds[k], section->kind) != 0) continue;
            if (k < 2) WEFT_TRY(add_group(builder, section, k == 0));
            else if (k == 2) WEFT_TRY(read_settings(builder, section, local));
            else if (k == 3) WEFT_TRY(read_reliable(builder, section));
            else if (k == 4) WEFT_TRY(add_link(builder, section));
            else WEFT_TRY(add_fault(builder, section));
        }
    }
    if (builder->topology->host_count == 0)
        return topology_bad(text, 1, "there is no [host NAME]: a topology needs at least one");
    return WEFT_OK;
}

/* ---- tables derived from the links ---- */

/* One link per host behind the cables: its path to itself. */
static enum weft_status add_local_links(struct weft_topology *topology, const struct topology_link *local)
{
    size_t count = (size_t)topology->link_count + topology->host_count;
    struct topology_link *links = weft_alloc_array(topology->env, count, sizeof *links);
    if (!links) return WEFT_ERR_NO_MEMORY;
    if (topology->link_count > 0) memcpy(links, topology->links, topology->link_count * sizeof *links);
    weft_free_bytes(topology->env, topology->links);
    topology->links = links;
    for (uint32_t host = 0; host < topology->host_count; host++) {
        links[topology->link_count + host] = *local;
        links[topology->link_count + host].from = links[topology->link_count + host].to = host;
    }
    return WEFT_OK;
}

static enum weft_status make_ports(struct builder *builder)
{
    struct weft_topology *topology = builder->topology;
    topology->ports =
        weft_alloc_array(topology->env, (size_t)topology->port_count + 1, sizeof *topology->ports);
    topology->port_first =
        weft_alloc_zero(topology->env, ((size_t)topology->host_count + 2) * sizeof *topology->port_first);
    if (!topology->ports || !topology->port_first) return WEFT_ERR_NO_MEMORY;
    uint32_t *first = topology->port_first;
    for (uint32_t link = 0; link < topology->link_count; link++) {
        if (builder->port_host[link] != UINT32_MAX) first[builder->port_host[link] + 2]++;
    }
    for (uint32_t host = 0; host < topology->host_count; host++) first[host + 2] += first[host + 1];
    for (uint32_t link = 0; link < topology->link_count; link++) {
        /* link ^ 1 is the other direction of the cable */
        if (builder->port_host[link] != UINT32_MAX)
            topology->ports[first[builder->port_host[link] + 1]++] = (struct topology_port){link, link ^ 1};
    }
    return WEFT_OK;
}

/* Links between switches, and distances between all switches. */
static enum weft_status make_switches(struct weft_topology *topology)
{
    uint32_t switches = topology->switch_count, hosts = topology->host_count;
    topology->out_first =
        weft_alloc_zero(topology->env, ((size_t)switches + 2) * sizeof *topology->out_first);
    topology->out_links =
        weft_alloc_array(topology->env, (size_t)topology->link_count + 1, sizeof *topology->out_links);
    topology->distance = weft_alloc_bytes(topology->env, (size_t)switches * switches + 1);
    uint32_t *queue = weft_alloc_array(topology->env, (size_t)switches + 1, sizeof *queue);
    if (!topology->out_first || !topology->out_links || !topology->distance || !queue) {
        weft_free_bytes(topology->env, queue);
        return WEFT_ERR_NO_MEMORY;
    }
    uint32_t *first = topology->out_first;
    for (uint32_t i = 0; i < topology->link_count; i++) {
        if (topology->links[i].from >= hosts && topology->links[i].to >= hosts)
            first[topology->links[i].from - hosts + 2]++;
    }
    for (uint32_t i = 0; i < switches; i++) first[i + 2] += first[i + 1];
    for (uint32_t i = 0; i < topology->link_count; i++) {
        if (topology->links[i].from >= hosts && topology->links[i].to >= hosts)
            topology->out_links[first[topology->links[i].from - hosts + 1]++] = i;
    }
    memset(topology->distance, TOPOLOGY_FAR, (size_t)switches * switches);
    for (uint32_t start = 0; start < switches; start++) { /* breadth first */
        uint8_t *distance = topology->distance + (size_t)start * switches;
        uint32_t head = 0, tail = 0;
        distance[start] = 0;
        queue[tail++] = start;
        while (head < tail) {
            uint32_t at = queue[head++];
            for (uint32_t k = first[at]; k < first[at + 1]; k++) {
                uint32_t next = topology->links[topology->out_links[k]].to - hosts;
                if (distance[next] != TOPOLOGY_FAR || distance[at] == TOPOLOGY_HOPS_MAX) continue;
                distance[next] = (uint8_t)(distance[at] + 1);
                queue[tail++] = next;
            }
        }
    }
    weft_free_bytes(topology->env, queue);
    return WEFT_OK;
}

/* Every host must reach every other. Checks the first host and the predecessor of each host. This finds a
 * missing cable; any other unreachable pair is reported when it connects. */
static enum weft_status check_reach(struct builder *builder)
{
    const struct weft_topology *topology = builder->topology;
    uint32_t path[TOPOLOGY_HOPS_MAX];
    for (uint32_t host = 1; host < topology->host_count; host++) {
        uint32_t before = host - 1;
        if (topology_route(topology, 0, 0, host, 0, 0, path) &&
            topology_route(topology, before, 0, host, 0, 0, path))
            continue;
        return topology_bad(
            &builder->text, 1,
            "host %u cannot be reached from host %u: no [link] leads there in at most %d steps", host,
            topology_route(topology, 0, 0, host, 0, 0, path) ? before : 0, TOPOLOGY_HOPS_MAX);
    }
    return WEFT_OK;
}

static enum weft_status build(struct builder *builder, const char *content, size_t bytes)
{
    struct weft_topology *topology = builder->topology;
    struct topology_link local = {.cable = UINT32_MAX, .ns_per_byte = 1e9 / 50e9, .latency_ns = 300};
    WEFT_TRY(topology_text_open(&builder->text, content, bytes));
    uint32_t sections = builder->text.section_count;
    builder->groups = weft_alloc_array(topology->env, sections, sizeof *builder->groups);
    builder->cables = weft_alloc_array(topology->env, sections, sizeof *builder->cables);
    topology->faults = weft_alloc_array(topology->env, sections, sizeof *topology->faults);
    topology->cable_names = weft_alloc_array(topology->env, sections, sizeof *topology->cable_names);
    if (!builder->groups || !builder->cables || !topology->faults || !topology->cable_names)
        return WEFT_ERR_NO_MEMORY;
    WEFT_TRY(read_sections(builder, &local));
    WEFT_TRY(make_ports(builder));
    WEFT_TRY(add_local_links(topology, &local));
    WEFT_TRY(make_switches(topology));
    return check_reach(builder);
}

enum weft_status weft_topology_parse(struct weft_env *env, const char *name, const char *content,
                                     size_t bytes, struct weft_topology **topology_out,
                                     struct weft_error *error)
{
    struct weft_topology *topology = weft_alloc_zero(env, sizeof *topology);
    if (!topology) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the topology %s", name);
    *topology = defaults;
    topology->env = env;
    const char *base = strrchr(name, '/');
    snprintf(topology->name, sizeof topology->name, "%s", base ? base + 1 : name);
    struct builder builder = {.text = {.env = env, .file = name, .error = error}, .topology = topology};
    enum weft_status status = build(&builder, content, bytes);
    weft_free_bytes(env, builder.groups);
    weft_free_bytes(env, builder.cables);
    weft_free_bytes(env, builder.port_host);
    topology_text_free(&builder.text);
    if (status < 0) {
        weft_topology_free(topology);
        return weft_error_set(error, status, "no memory for the topology %s", name);
    }
    *topology_out = topology;
    return WEFT_OK;
}

void weft_topology_free(struct weft_topology *topology)
{
    if (!topology) return;
    struct weft_env *env = topology->env;
    weft_free_bytes(env, topology->links);
    weft_free_bytes(env, topology->ports);
    weft_free_bytes(env, topology->port_first);
    weft_free_bytes(env, topology->out_first);
    weft_free_bytes(env, topology->out_links);
    weft_free_bytes(env, topology->distance);
    weft_free_bytes(env, topology->faults);
    weft_free_bytes(env, topology->cable_names);
    weft_free_bytes(env, topology);
}

uint32_t weft_topology_hosts(const struct weft_topology *topology) { return topology->host_count; }

void weft_topology_describe(const struct weft_topology *topology, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s: %u hosts with %u ports, %u switches, %u cables", topology->name,
             topology->host_count, topology->port_count, topology->switch_count, topology->link_count / 2);
}
