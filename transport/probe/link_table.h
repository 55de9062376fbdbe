/* link_table.h - what is known about the links between hosts: one table that doctor prints and that whoever
 * must choose (a plan, a lane, a codec) asks.
 *
 * A row is one direction over one lane: how long the first byte takes and how many follow per second, or why
 * it does not work. Rows are measured (probe.h), not configured. Plain data: no clock, no sockets; one thread
 * at a time.
 *
 *   weft-links 1                                        text form: versioned, bounded, whole or refused
 *   host 6f1c20aa93e1d2b4 node-a
 *   machine 0 640 125 90 40 8192                        host; what it takes there, as in struct weft_link_machine; may be missing
 *   memory 0 370 480 260 12 51 2048 491520              host; what its ranks' common memory takes, as in struct weft_link_memory; may be missing
 *   runs 0 4096 2 2 6100 5900 25 ... 180              host, shortest length; what messages of its ranks take, as in struct weft_link_runs; may be missing
 *   link 0 1 works 5210 11892000000 ucx:tcp|ucx tcp     from, to, state, ns, bytes per second, lane | way or reason
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
    uint32_t from, to; /* hosts, by index; equal: inside one host */
    enum weft_link_state state;
    uint64_t latency_ns;       /* one way of a message without payload; 0 unless it works */
    uint64_t bytes_per_second; /* one way of large messages; 0 unless it works */
    char lane[WEFT_LINK_LANE_BYTES];  /* "ucx:tcp", as the tools write transports */
    char text[WEFT_LINK_TEXT_BYTES];  /* the way ("shm mapped"), or why not; one line */
};

/* What messages and sums cost a host's processors; 0: not measured. */
struct weft_link_machine {
    uint32_t inject_ns;    /* handing over one message */
    uint32_t sum_ps;       /* per byte added in cache */
    uint32_t pass_ps;      /* per byte of memory passed over */
    uint32_t incast_milli; /* thousandths by which each sender beyond the eighth slows a link that many
                            * share */
    uint32_t eager_bytes;  /* longer messages take two trips more */
};

/* What operations over memory that ranks of a host map take there; 0: not measured. Times are those of
 * ranks with a processor each. */
struct weft_link_memory {
    uint32_t words_ns;  /* one round of words: everybody says something, and has seen what all others say */
    uint32_t slices_ns; /* what an operation in slices takes beyond that and its bytes: it says where
                         * buffers lie, and once more that all is over */
    uint32_t said_ps;   /* per byte that is taken out of another's announcement */
    uint32_t cached_ps; /* per byte loaded or stored in buffers that the processors' own caches hold */
    uint32_t passed_ps; /* ... that only the last cache holds */
    uint32_t core_kib;  /* a processor's own cache */
    uint32_t last_kib;  /* the one that they share */
    uint32_t past_ps;   /* per byte of buffers whose results are stored past the caches, while the last one
                         * holds the rest */
};

/* What messages between ranks of one host take that move them all at once, as plans do, and not by memory
 * that they map: by pattern and by length of the vector, because no one rate holds for all. Measured with
 * so many ranks on so many processors. ranks 0: not measured. */
/* as doubling, halving, ring, direct, double_tree */
enum weft_link_pattern {
    WEFT_LINK_DOUBLING,
    WEFT_LINK_HALVING,
    WEFT_LINK_RING,
    WEFT_LINK_DIRECT,
    WEFT_LINK_DOUBLE_TREE,
    WEFT_LINK_PATTERNS
};
#define WEFT_LINK_LENGTHS 12
#define WEFT_LINK_LENGTH_MIN 4096u /* bytes; the next ones are twice as long each, to 8 MiB */
static inline uint64_t weft_link_length(uint32_t index) { return (uint64_t)WEFT_LINK_LENGTH_MIN << index; }
struct weft_link_runs {
    uint32_t ranks, processors;
    uint32_t trip_ns;   /* of a message without bytes, handing over aside */
    uint32_t inject_ns; /* handing over one */
    uint32_t byte_ps[WEFT_LINK_PATTERNS][WEFT_LINK_LENGTHS];
};
/* it is these, one after the other */
#define WEFT_LINK_RUNS_NUMBERS (4 + WEFT_LINK_PATTERNS * WEFT_LINK_LENGTHS)
/* Good numbers: none at all, or ranks, processors and rates that one can divide by, of at most nine
 * digits. */
bool weft_link_runs_are_valid(const struct weft_link_runs *runs);

struct weft_link_table;

enum weft_status weft_link_table_create(struct weft_env *env, struct weft_link_table **table_out);
void weft_link_table_free(struct weft_link_table *table); /* NULL is fine */
struct weft_env *weft_link_table_env(const struct weft_link_table *table);

/* The index of a host, added if it is new; a known name with another fingerprint is a changed host: its
 * links are forgotten. WEFT_ERR_INVALID (empty, too long or unprintable name), _LIMIT, _NO_MEMORY. */
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
/* INVALID: or no good numbers */
enum weft_status weft_link_table_set_runs(struct weft_link_table *table, uint32_t index,
                                          const struct weft_link_runs *runs);
/* likewise */
const struct weft_link_runs *weft_link_table_runs(const struct weft_link_table *table, uint32_t index);

/* Add a row, or replace the one of the same hosts and lane. Unprintable characters of text become '?'.
 * WEFT_ERR_INVALID, _LIMIT, _NO_MEMORY. */
enum weft_status weft_link_table_set(struct weft_link_table *table, const struct weft_link *link);
uint32_t weft_link_table_count(const struct weft_link_table *table);
/* Rows in the order (from, to, lane as first set); NULL: no such row. Valid until the next change of the
 * table. */
const struct weft_link *weft_link_table_get(const struct weft_link_table *table, uint32_t index);
const struct weft_link *weft_link_table_find(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             const char *lane);
/* The working lane over which `bytes` arrive first; NULL: none works, or none was tried. */
const struct weft_link *weft_link_table_best(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             uint64_t bytes);
/* latency + bytes / bandwidth; WEFT_NEVER for a link that does not work. */
uint64_t weft_link_time_ns(const struct weft_link *link, uint64_t bytes);

/* The text form, to `*text_out` (of the table's env; the caller frees it with weft_free_bytes).
 * WEFT_ERR_NO_MEMORY. */
enum weft_status weft_link_table_write(const struct weft_link_table *table, char **text_out,
                                       size_t *bytes_out);
/* A new table from the text form. WEFT_ERR_MALFORMED with the line, _VERSION, _LIMIT, _NO_MEMORY. */
enum weft_status weft_link_table_read(struct weft_env *env, const char *text, size_t bytes,
                                      struct weft_link_table **table_out, struct weft_error *error);

/* As a file: load answers WEFT_ERR_NOT_FOUND when there is none; save replaces it in one step, mode 0600.
 * Both block. WEFT_ERR_IO and those above, with a sentence. */
enum weft_status weft_link_table_load(struct weft_env *env, const char *path,
                                      struct weft_link_table **table_out, struct weft_error *error);
enum weft_status weft_link_table_save(const struct weft_link_table *table, const char *path,
                                      struct weft_error *error);

/* Another number when this host became another machine for its links: name, network devices with speed and
 * MTU, processors, memory size, this release of weft. `root` is "/" (or a tree that stands for one, in
 * tests). Never 0. */
uint64_t weft_host_fingerprint(const char *root);

#endif
