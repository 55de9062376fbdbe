/* topology.h - a network as a file describes it: hosts, switches, cables. Constant once read.
 *
 *   topology_file.c    text ─► sections of `name = value` lines, each with its line number
 *   topology_value.c   text of a value ─► number (rates, times, sizes, probabilities, ranges of nodes)
 *   topology.c         sections ─► nodes, directed links, ports, distances between switches
 *   topology_route.c   links of a flow: shortest path, ties broken by a hash
 *
 * Nodes are numbered hosts first, then switches. A cable is two adjacent directed links. Hosts do not
 * forward. The ports of a host are its rails, in file order. */
#ifndef WEFT_TRANSPORT_SIM_TOPOLOGY_H
#define WEFT_TRANSPORT_SIM_TOPOLOGY_H

#include "transport/transport.h"

enum {
    TOPOLOGY_HOPS_MAX = 16,
    TOPOLOGY_HOSTS_MAX = 65536,
    TOPOLOGY_SWITCHES_MAX = 4096,
    TOPOLOGY_LINKS_MAX = 1 << 21
};
#define TOPOLOGY_FAR 255
#define TOPOLOGY_CABLE_NAME_BYTES 32

struct topology_link {
    uint32_t from, to; /* nodes */
    uint32_t cable;    /* index of its [link] section */
    double ns_per_byte;
    uint64_t latency_ns, jitter_ns, buffer_bytes; /* buffer 0: unlimited, as in a lossless fabric */
    double loss, duplicate;
};

struct topology_port {
    uint32_t out, in; /* links */
};

enum topology_fault_kind { TOPOLOGY_KILL = 1, TOPOLOGY_SLOW, TOPOLOGY_CUT, TOPOLOGY_DOWN };

struct topology_range {
    uint32_t first, count;
};

struct topology_fault {
    enum topology_fault_kind kind;
    uint64_t at_ns, until_ns;       /* until WEFT_NEVER: permanent */
    struct topology_range a, b;     /* hosts; b: of a cut */
    uint32_t factor, cable;
};

struct weft_topology {
    struct weft_env *env;
    char name[64];
    uint32_t host_count, switch_count, link_count, port_count, cable_count, fault_count;
    /* (cable_count,) names of the [link] sections, truncated */
    char (*cable_names)[TOPOLOGY_CABLE_NAME_BYTES];
    /* (link_count + host_count,): behind the cables each host's path to itself */
    struct topology_link *links;
    struct topology_port *ports; /* (port_count,) host by host */
    uint32_t *port_first;        /* (host_count + 1,) */
    uint32_t *out_first;         /* (switch_count + 1,) into out_links: links from switch to switch */
    uint32_t *out_links;
    uint8_t *distance;           /* (switch_count, switch_count) hops; TOPOLOGY_FAR: no path */
    struct topology_fault *faults;
    /* window 0: derived from the path; detect 0: from the options */
    uint64_t burst_bytes, window_bytes, timeout_ns, detect_ns;
    uint32_t retry_count;
};

/* ---- topology_file.c ---- */
struct topology_entry {
    const char *name, *value;
    int line;
    bool used;
};
struct topology_section {
    const char *kind, *name; /* [kind name] */
    int line;
    uint32_t first, count;   /* of its entries */
};
struct topology_text {
    struct weft_env *env;
    const char *file;
    char *text;
    struct topology_section *sections;
    struct topology_entry *entries;
    uint32_t section_count, section_capacity, entry_count, entry_capacity;
    struct weft_error *error;
};
enum weft_status topology_text_open(struct topology_text *text, const char *content, size_t bytes);
void topology_text_free(struct topology_text *text);
/* The value of a setting, marked as used, or NULL. line_out may be NULL. */
const char *topology_setting(struct topology_text *text, const struct topology_section *section,
                             const char *name, int *line_out);
/* Reports an unused setting; `known` lists the valid ones. */
enum weft_status topology_all_used(struct topology_text *text, const struct topology_section *section,
                                   const char *known);
enum weft_status topology_bad(struct topology_text *text, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- topology_value.c: *value_out is unchanged if the setting is absent ---- */
enum weft_status topology_count(struct topology_text *text, const struct topology_section *section,
                                const char *name, uint64_t min, uint64_t max, uint64_t *value_out);
enum weft_status topology_time(struct topology_text *text, const struct topology_section *section,
                               const char *name, uint64_t *ns_out);
enum weft_status topology_size(struct topology_text *text, const struct topology_section *section,
                               const char *name, uint64_t *bytes_out);
enum weft_status topology_rate(struct topology_text *text, const struct topology_section *section,
                               const char *name, double *per_second_out);
enum weft_status topology_chance(struct topology_text *text, const struct topology_section *section,
                                 const char *name, double *chance_out);

/* ---- topology_route.c ---- */
/* The links from (host, rail) to (host, rail); 0: no path. `hash` breaks ties. path_out
 * (TOPOLOGY_HOPS_MAX,) */
uint32_t topology_route(const struct weft_topology *topology, uint32_t from, uint32_t from_rail, uint32_t to,
                        uint32_t to_rail, uint64_t hash, uint32_t *path_out);

/* Whether such a path exists; cheaper than topology_route. */
bool topology_reaches(const struct weft_topology *topology, uint32_t from, uint32_t from_rail, uint32_t to,
                      uint32_t to_rail);

#endif
