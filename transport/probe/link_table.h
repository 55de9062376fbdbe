/* link_table.h - measured properties of the links between hosts: printed by doctor, input of plan, lane
 * and codec choice.
 *
 * A row is one direction over one lane: latency and bandwidth, or why it does not work. Rows are measured
 * (probe.h), not configured. Plain data: no clock, no sockets; one thread at a time.
 *
 *   weft-links 1                                      text form: accepted completely or refused
 *   host 6f1c20aa93e1d2b4 node-a
 *   machine 0 640 125 90 40 8192                      host; struct weft_link_machine; optional
 *   memory 0 370 480 260 12 51 2048 491520 40         host; struct weft_link_memory; optional
 *   runs 0 4096 2 2 6100 5900 25 ... 180              host, shortest length; struct weft_link_runs; optional
 *   link 0 1 works 5210 11892000000 ucx:tcp|ucx tcp   from, to, state, ns, bytes/s, lane | path or reason
 *   end 4 */
#ifndef WEFT_TRANSPORT_LINK_TABLE_H
#define WEFT_TRANSPORT_LINK_TABLE_H

#include "base/base.h"

#define WEFT_LINK_HOSTS_MAX 4096u
#define WEFT_LINKS_MAX 65536u
#define WEFT_LINK_NAME_BYTES 64 /* with the closing zero */
#define WEFT_LINK_LANE_BYTES 40
#define WEFT_LINK_TEXT_BYTES 160
#define WEFT_LINK_TABLE_BYTES_MAX ((size_t)32 << 20) /* of the text form */

enum weft_link_state { WEFT_LINK_WORKS = 1, WEFT_LINK_FAILED = 2 };

struct weft_link {
    uint32_t from, to; /* host indices; equal: inside one host */
    enum weft_link_state state;
    uint64_t latency_ns;       /* one way of a message without payload; 0 unless it works */
    uint64_t bytes_per_second; /* one way of large messages; 0 unless it works */
    char lane[WEFT_LINK_LANE_BYTES];  /* "ucx:tcp", transport names as in the tools */
    char text[WEFT_LINK_TEXT_BYTES];  /* the path ("shm mapped"), or the reason of the failure; one line */
};

/* Cost of messages and reductions on a host's processors; 0: not measured. */
struct weft_link_machine {
    uint32_t inject_ns;    /* posting one message */
    uint32_t sum_ps;       /* per byte added in cache */
    uint32_t pass_ps;      /* per byte of memory traffic */
    uint32_t incast_milli; /* thousandths by which each sender beyond the eighth slows a shared link */
    uint32_t eager_bytes;  /* larger messages take two more one-way trips */
};

/* Cost of one-host operations in mapped memory; 0: not measured. Measured with one processor per rank. */
struct weft_link_memory {
    uint32_t flag_round_ns; /* one round of flags: every rank sets its flag and has read all others */
    /* an operation in slices, beyond its rounds of flags and its bytes: descriptors of the buffers, and
     * the final round */
    uint32_t slices_overhead_ns;
    uint32_t copyin_ps;         /* copy-in: per byte read from a peer's descriptor */
    uint32_t private_cache_ps;  /* per byte loaded or stored in buffers that fit the private caches */
    uint32_t last_cache_ps;     /* per byte in buffers that fit the shared last-level cache only */
    uint32_t private_cache_kib; /* private cache of a processor, in KiB */
    uint32_t last_cache_kib;    /* shared last-level cache, in KiB */
    /* per byte of buffers whose results use non-temporal stores, while the last-level cache holds the
     * inputs */
    uint32_t nt_store_ps;
};

/* Cost of messages among the ranks of one host, by pattern and vector length, because no single rate fits.
 * Measured with `ranks` ranks on `processors` processors, all at once. ranks 0: not measured. */
/* named after the plan */
enum weft_link_pattern {
    WEFT_LINK_DOUBLING,
    WEFT_LINK_HALVING,
    WEFT_LINK_RING,
    WEFT_LINK_DIRECT,
    WEFT_LINK_DOUBLE_TREE,
    WEFT_LINK_PATTERNS
};
#define WEFT_LINK_LENGTHS 12
#define WEFT_LINK_LENGTH_MIN 4096u /* bytes; each length is twice the previous, up to 8 MiB */
static inline uint64_t weft_link_length(uint32_t index) { return (uint64_t)WEFT_LINK_LENGTH_MIN << index; }
struct weft_link_runs {
    uint32_t ranks, processors;
    uint32_t trip_ns;   /* one-way trip of an empty message, without posting */
    uint32_t inject_ns; /* posting one message */
    uint32_t byte_ps[WEFT_LINK_PATTERNS][WEFT_LINK_LENGTHS];
};
/* numbers in struct weft_link_runs, without padding */
#define WEFT_LINK_RUNS_NUMBERS (4 + WEFT_LINK_PATTERNS * WEFT_LINK_LENGTHS)
/* Valid: all zero, or every number from 1 to 999,999,999. */
bool weft_link_runs_are_valid(const struct weft_link_runs *runs);

struct weft_link_table;

enum weft_status weft_link_table_create(struct weft_env *env, struct weft_link_table **table_out);
void weft_link_table_free(struct weft_link_table *table); /* NULL is fine */
struct weft_env *weft_link_table_env(const struct weft_link_table *table);

/* The index of a host, added if new. A known name with another fingerprint is a changed host: its links
 * are removed. WEFT_ERR_INVALID (empty, too long or unprintable name), _LIMIT, _NO_MEMORY. */
enum weft_status weft_link_table_host(struct weft_link_table *table, const char *name, uint64_t fingerprint,
                                      uint32_t *index_out);
uint32_t weft_link_table_host_count(const struct weft_link_table *table);
/* NULL: no such host */
const char *weft_link_table_host_name(const struct weft_link_table *table, uint32_t index);
/* 0: no such host */
uint64_t weft_link_table_host_fingerprint(const struct weft_link_table *table, uint32_t index);

/* WEFT_ERR_INVALID: no such host. */
enum weft_status weft_link_table_set_machine(struct weft_link_table *table, uint32_t index,
                                             const struct weft_link_machine *machine);
/* all 0: not measured; NULL: no such host */
const struct weft_link_machine *weft_link_table_machine(const struct weft_link_table *table, uint32_t index);
enum weft_status weft_link_table_set_memory(struct weft_link_table *table, uint32_t index,
                                            const struct weft_link_memory *memory);
/* likewise */
const struct weft_link_memory *weft_link_table_memory(const struct weft_link_table *table, uint32_t index);
/* also INVALID: invalid numbers */
enum weft_status weft_link_table_set_runs(struct weft_link_table *table, uint32_t index,
                                          const struct weft_link_runs *runs);
/* likewise */
const struct weft_link_runs *weft_link_table_runs(const struct weft_link_table *table, uint32_t index);

/* Adds a row, or replaces that of the same hosts and lane. Unprintable characters of text become '?'.
 * WEFT_ERR_INVALID, _LIMIT, _NO_MEMORY. */
enum weft_status weft_link_table_set(struct weft_link_table *table, const struct weft_link *link);
uint32_t weft_link_table_count(const struct weft_link_table *table);
/* Rows ordered by (from, to, lane as first set); NULL: no such row. Valid until the next change of the
 * table. */
const struct weft_link *weft_link_table_get(const struct weft_link_table *table, uint32_t index);
const struct weft_link *weft_link_table_find(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             const char *lane);
/* The working lane with the lowest time for `bytes`; NULL: none works or none was measured. */
const struct weft_link *weft_link_table_best(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             uint64_t bytes);
/* latency + bytes / bandwidth; WEFT_NEVER: the link does not work. */
uint64_t weft_link_time_ns(const struct weft_link *link, uint64_t bytes);

/* Writes the text form to `*text_out` (env of the table; free with weft_free_bytes). WEFT_ERR_NO_MEMORY. */
enum weft_status weft_link_table_write(const struct weft_link_table *table, char **text_out,
                                       size_t *bytes_out);
/* Parses the text form into a new table. WEFT_ERR_MALFORMED with the line, _VERSION, _LIMIT, _NO_MEMORY. */
enum weft_status weft_link_table_read(struct weft_env *env, const char *text, size_t bytes,
                                      struct weft_link_table **table_out, struct weft_error *error);

/* File access: load returns WEFT_ERR_NOT_FOUND if there is no file; save replaces the file atomically,
 * mode 0600. Both block. WEFT_ERR_IO and those above, with a sentence. */
enum weft_status weft_link_table_load(struct weft_env *env, const char *path,
                                      struct weft_link_table **table_out, struct weft_error *error);
enum weft_status weft_link_table_save(const struct weft_link_table *table, const char *path,
                                      struct weft_error *error);

/* Changes when the host changes for its links: name, network devices with speed and MTU, processors,
 * memory size, release of weft. `root` is "/", or a copy of the tree in tests. Never 0. */
uint64_t weft_host_fingerprint(const char *root);

#endif
