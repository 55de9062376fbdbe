/* link_table.c - rows and text form of the link table; see link_table.h. Rows are sorted by (from, to), so
 * the lanes of a pair are adjacent and a look-up is a binary search. */
#include "transport/probe/link_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct host {
    char name[WEFT_LINK_NAME_BYTES];
    uint64_t fingerprint;
    struct weft_link_machine machine;
    struct weft_link_memory memory;
    struct weft_link_runs runs;
};

struct weft_link_table {
    struct weft_env *env;
    struct host *hosts;
    struct weft_link *links;
    uint32_t host_count, host_capacity, link_count, link_capacity;
};

enum { LINE_BYTES_MAX = 512, VERSION = 1 };

enum weft_status weft_link_table_create(struct weft_env *env, struct weft_link_table **table_out)
{
    struct weft_link_table *table = weft_alloc_zero(env, sizeof *table);
    if (!table) return WEFT_ERR_NO_MEMORY;
    table->env = env;
    *table_out = table;
    return WEFT_OK;
}

void weft_link_table_free(struct weft_link_table *table)
{
    if (!table) return;
    weft_free_bytes(table->env, table->hosts);
    weft_free_bytes(table->env, table->links);
    weft_free_bytes(table->env, table);
}

struct weft_env *weft_link_table_env(const struct weft_link_table *table) { return table->env; }

/* Makes space for one more item. */
static enum weft_status grow(struct weft_env *env, void **items, uint32_t count, uint32_t *capacity,
                             uint32_t max, size_t bytes)
{
    if (count < *capacity) return WEFT_OK;
    if (count >= max)
        return weft_limit_note("a link table has at most %" PRIu32 " hosts or links; probe fewer", max);
    uint32_t wanted = *capacity ? 2 * *capacity : 16;
    void *more = weft_alloc_array(env, wanted, bytes);
    if (!more) return WEFT_ERR_NO_MEMORY;
    if (count) memcpy(more, *items, count * bytes);
    weft_free_bytes(env, *items);
    *items = more;
    *capacity = wanted;
    return WEFT_OK;
}

/* ---- hosts ---- */

static bool is_valid_name(const char *name)
{
    size_t length = strnlen(name, WEFT_LINK_NAME_BYTES);
    if (length == 0 || length == WEFT_LINK_NAME_BYTES) return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~') return false;
    }
    return true;
}

static void forget_links(struct weft_link_table *table, uint32_t host)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < table->link_count; i++) {
        if (table->links[i].from != host && table->links[i].to != host)
            table->links[kept++] = table->links[i];
    }
    table->link_count = kept;
}

enum weft_status weft_link_table_host(struct weft_link_table *table, const char *name, uint64_t fingerprint,
                                      uint32_t *index_out)
{
    if (!is_valid_name(name)) return WEFT_ERR_INVALID;
    for (uint32_t i = 0; i < table->host_count; i++) {
        struct host *host = &table->hosts[i];
        if (strcmp(host->name, name) != 0) continue;
        if (host->fingerprint != fingerprint) {
            forget_links(table, i);
            host->machine = (struct weft_link_machine){0};
            host->memory = (struct weft_link_memory){0};
            host->runs = (struct weft_link_runs){0};
        }
        host->fingerprint = fingerprint;
        *index_out = i;
        return WEFT_OK;
    }
    WEFT_TRY(grow(table->env, (void **)&table->hosts, table->host_count, &table->host_capacity,
                  WEFT_LINK_HOSTS_MAX, sizeof *table->hosts));
    struct host *host = &table->hosts[table->host_count];
    snprintf(host->name, sizeof host->name, "%s", name);
    host->fingerprint = fingerprint;
    host->memory = (struct weft_link_memory){0};
    host->runs = (struct weft_link_runs){0};
    host->machine = (struct weft_link_machine){0};
    *index_out = table->host_count++;
    return WEFT_OK;
}

uint32_t weft_link_table_host_count(const struct weft_link_table *table) { return table->host_count; }

const char *weft_link_table_host_name(const struct weft_link_table *table, uint32_t index)
{
    return index < table->host_count ? table->hosts[index].name : NULL;
}

uint64_t weft_link_table_host_fingerprint(const struct weft_link_table *table, uint32_t index)
{
    return index < table->host_count ? table->hosts[index].fingerprint : 0;
}

enum weft_status weft_link_table_set_machine(struct weft_link_table *table, uint32_t index,
                                             const struct weft_link_machine *machine)
{
    if (index >= table->host_count) return WEFT_ERR_INVALID;
    table->hosts[index].machine = *machine;
    return WEFT_OK;
}

const struct weft_link_machine *weft_link_table_machine(const struct weft_link_table *table, uint32_t index)
{
    return index < table->host_count ? &table->hosts[index].machine : NULL;
}

enum weft_status weft_link_table_set_memory(struct weft_link_table *table, uint32_t index,
                                            const struct weft_link_memory *memory)
{
    if (index >= table->host_count) return WEFT_ERR_INVALID;
    table->hosts[index].memory = *memory;
    return WEFT_OK;
}

const struct weft_link_memory *weft_link_table_memory(const struct weft_link_table *table, uint32_t index)
{
    return index < table->host_count ? &table->hosts[index].memory : NULL;
}

_Static_assert(sizeof(struct weft_link_runs) == WEFT_LINK_RUNS_NUMBERS * sizeof(uint32_t),
               "runs are so many numbers, one after the other");

bool weft_link_runs_are_valid(const struct weft_link_runs *runs)
{
    static const struct weft_link_runs none = {0};
    uint32_t numbers[WEFT_LINK_RUNS_NUMBERS];
    bool good = true;
    memcpy(numbers, runs, sizeof numbers);
    for (int i = 0; i < WEFT_LINK_RUNS_NUMBERS; i++) good &= numbers[i] > 0 && numbers[i] <= 999999999;
    return good || memcmp(runs, &none, sizeof none) == 0;
}

enum weft_status weft_link_table_set_runs(struct weft_link_table *table, uint32_t index,
                                          const struct weft_link_runs *runs)
{
    if (index >= table->host_count || !weft_link_runs_are_valid(runs)) return WEFT_ERR_INVALID;
    table->hosts[index].runs = *runs;
    return WEFT_OK;
}

const struct weft_link_runs *weft_link_table_runs(const struct weft_link_table *table, uint32_t index)
{
    return index < table->host_count ? &table->hosts[index].runs : NULL;
}

static bool is_measured(const struct weft_link_machine *m)
{
    return m->inject_ns || m->sum_ps || m->pass_ps || m->incast_milli || m->eager_bytes;
}
static bool is_mapped(const struct weft_link_memory *m)
{
    return m->flag_round_ns || m->slices_overhead_ns || m->copyin_ps || m->private_cache_ps ||
           m->last_cache_ps || m->private_cache_kib || m->last_cache_kib || m->nt_store_ps;
}
/* Number of "machine", "memory" and "runs" lines. */
static uint32_t machine_count(const struct weft_link_table *table)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < table->host_count; i++)
        count += (uint32_t)is_measured(&table->hosts[i].machine) +
                 (uint32_t)is_mapped(&table->hosts[i].memory) + (table->hosts[i].runs.ranks > 0);
    return count;
}

/* ---- rows ---- */

/* The first row not before (from, to). */
static uint32_t lower_bound(const struct weft_link_table *table, uint32_t from, uint32_t to)
{
    uint32_t low = 0, high = table->link_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct weft_link *link = &table->links[middle];
        if (link->from < from || (link->from == from && link->to < to)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool link_is_of_pair(const struct weft_link_table *table, uint32_t index, uint32_t from, uint32_t to)
{
    return index < table->link_count && table->links[index].from == from && table->links[index].to == to;
}

static bool is_valid_lane(const char *lane)
{
    size_t length = strnlen(lane, WEFT_LINK_LANE_BYTES);
    if (length == 0 || length == WEFT_LINK_LANE_BYTES) return false;
    for (size_t i = 0; i < length; i++) {
        if (lane[i] <= ' ' || lane[i] > '~' || lane[i] == '|') return false;
    }
    return true;
}

static void copy_text(char *out, const char *text)
{
    size_t length = strnlen(text, WEFT_LINK_TEXT_BYTES - 1);
    for (size_t i = 0; i < length; i++) out[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
    memset(out + length, 0, WEFT_LINK_TEXT_BYTES - length);
}

enum weft_status weft_link_table_set(struct weft_link_table *table, const struct weft_link *link)
{
    bool works = link->state == WEFT_LINK_WORKS;
    if (link->from >= table->host_count || link->to >= table->host_count || !is_valid_lane(link->lane))
        return WEFT_ERR_INVALID;
    if (!works && link->state != WEFT_LINK_FAILED) return WEFT_ERR_INVALID;
    if (works && (link->latency_ns == 0 || link->bytes_per_second == 0)) return WEFT_ERR_INVALID;
    uint32_t at = lower_bound(table, link->from, link->to);
    while (link_is_of_pair(table, at, link->from, link->to) && strcmp(table->links[at].lane, link->lane) != 0)
        at++;
    if (!link_is_of_pair(table, at, link->from, link->to)) {
        WEFT_TRY(grow(table->env, (void **)&table->links, table->link_count, &table->link_capacity,
                      WEFT_LINKS_MAX, sizeof *table->links));
        memmove(&table->links[at + 1], &table->links[at], (table->link_count - at) * sizeof *table->links);
        table->link_count++;
    }
    struct weft_link *row = &table->links[at];
    memset(row, 0, sizeof *row);
    row->from = link->from;
    row->to = link->to;
    row->state = link->state;
    row->latency_ns = works ? link->latency_ns : 0;
    row->bytes_per_second = works ? link->bytes_per_second : 0;
    memcpy(row->lane, link->lane, strlen(link->lane) + 1);
    copy_text(row->text, link->text);
    return WEFT_OK;
}

uint32_t weft_link_table_count(const struct weft_link_table *table) { return table->link_count; }

const struct weft_link *weft_link_table_get(const struct weft_link_table *table, uint32_t index)
{
    return index < table->link_count ? &table->links[index] : NULL;
}

const struct weft_link *weft_link_table_find(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             const char *lane)
{
    for (uint32_t at = lower_bound(table, from, to); link_is_of_pair(table, at, from, to); at++) {
        if (strcmp(table->links[at].lane, lane) == 0) return &table->links[at];
    }
    return NULL;
}

uint64_t weft_link_time_ns(const struct weft_link *link, uint64_t bytes)
{
    if (link->state != WEFT_LINK_WORKS) return WEFT_NEVER;
    double transfer_ns = 1e9 * (double)bytes / (double)link->bytes_per_second;
    if (transfer_ns >= 9e18 || link->latency_ns >= (uint64_t)9e18) return WEFT_NEVER;
    return link->latency_ns + (uint64_t)transfer_ns;
}

const struct weft_link *weft_link_table_best(const struct weft_link_table *table, uint32_t from, uint32_t to,
                                             uint64_t bytes)
{
    const struct weft_link *best = NULL;
    uint64_t best_ns = WEFT_NEVER;
    for (uint32_t at = lower_bound(table, from, to); link_is_of_pair(table, at, from, to); at++) {
        uint64_t time_ns = weft_link_time_ns(&table->links[at], bytes);
        if (time_ns >= best_ns) continue;
        best = &table->links[at];
        best_ns = time_ns;
    }
    return best;
}

/* ---- the text form ---- */

static size_t write_runs(const struct weft_link_runs *runs, uint32_t host, char *out, size_t capacity)
{
    uint32_t numbers[WEFT_LINK_RUNS_NUMBERS];
    if (runs->ranks == 0) return 0;
    memcpy(numbers, runs, sizeof numbers);
    size_t at = (size_t)snprintf(out, capacity, "runs %" PRIu32 " %u", host, WEFT_LINK_LENGTH_MIN);
    for (int i = 0; i < WEFT_LINK_RUNS_NUMBERS; i++)
        at += (size_t)snprintf(out + at, capacity - at, " %" PRIu32, numbers[i]);
    return at + (size_t)snprintf(out + at, capacity - at, "\n");
}

enum weft_status weft_link_table_write(const struct weft_link_table *table, char **text_out,
                                       size_t *bytes_out)
{
    size_t capacity =
        64 + (size_t)table->host_count * (WEFT_LINK_NAME_BYTES + 224 + 32 + 10 * WEFT_LINK_RUNS_NUMBERS) +
        (size_t)table->link_count * (WEFT_LINK_LANE_BYTES + WEFT_LINK_TEXT_BYTES + 96);
    char *text = weft_alloc_bytes(table->env, capacity);
    if (!text) return WEFT_ERR_NO_MEMORY;
    size_t at = (size_t)snprintf(text, capacity, "weft-links %d\n", VERSION);
    for (uint32_t i = 0; i < table->host_count; i++) {
        at += (size_t)snprintf(text + at, capacity - at, "host %016" PRIx64 " %s\n",
                               table->hosts[i].fingerprint, table->hosts[i].name);
    }
    for (uint32_t i = 0; i < table->host_count; i++) {
        const struct weft_link_machine *m = &table->hosts[i].machine;
        if (!is_measured(m)) continue;
        at += (size_t)snprintf(text + at, capacity - at,
                               "machine %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32
                               "\n",
                               i, m->inject_ns, m->sum_ps, m->pass_ps, m->incast_milli, m->eager_bytes);
    }
    for (uint32_t i = 0; i < table->host_count; i++) {
        const struct weft_link_memory *m = &table->hosts[i].memory;
        if (!is_mapped(m)) continue;
        at += (size_t)snprintf(text + at, capacity - at,
                               "memory %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32
                               " %" PRIu32 " %" PRIu32 " %" PRIu32 "\n",
                               i, m->flag_round_ns, m->slices_overhead_ns, m->copyin_ps, m->private_cache_ps,
                               m->last_cache_ps, m->private_cache_kib, m->last_cache_kib, m->nt_store_ps);
    }
    for (uint32_t i = 0; i < table->host_count; i++)
        at += write_runs(&table->hosts[i].runs, i, text + at, capacity - at);
    for (uint32_t i = 0; i < table->link_count; i++) {
        const struct weft_link *link = &table->links[i];
        at += (size_t)snprintf(text + at, capacity - at,
                               "link %" PRIu32 " %" PRIu32 " %s %" PRIu64 " %" PRIu64 " %s|%s\n", link->from,
                               link->to, link->state == WEFT_LINK_WORKS ? "works" : "failed",
                               link->latency_ns, link->bytes_per_second, link->lane, link->text);
    }
    at += (size_t)snprintf(text + at, capacity - at, "end %" PRIu32 "\n",
                           table->host_count + machine_count(table) + table->link_count);
    WEFT_ASSERT(at < capacity);
    *text_out = text;
    *bytes_out = at;
    return WEFT_OK;
}

/* Parses a number of at most `digits` digits and advances *at behind it and one space (or to the end of
 * the line). */
static bool take_number(const char **at, int base, size_t digits, uint64_t *out)
{
    static const char known[] = "0123456789abcdef";
    uint64_t value = 0;
    size_t count = 0;
    for (; **at && **at != ' '; (*at)++) {
        const char *digit = memchr(known, **at, (size_t)base);
        if (!digit || ++count > digits) return false;
        value = value * (uint64_t)base + (uint64_t)(digit - known);
    }
    if (**at == ' ') (*at)++;
    *out = value;
    return count > 0;
}

static enum weft_status read_host(struct weft_link_table *table, const char *at)
{
    uint64_t fingerprint;
    uint32_t index, before = table->host_count;
    if (!take_number(&at, 16, 16, &fingerprint)) return WEFT_ERR_MALFORMED;
    enum weft_status status = weft_link_table_host(table, at, fingerprint, &index);
    /* a duplicate name */
    if (status == WEFT_ERR_INVALID || (status == WEFT_OK && index != before)) return WEFT_ERR_MALFORMED;
    return status;
}

static enum weft_status read_link(struct weft_link_table *table, const char *at)
{
    struct weft_link link = {0};
    uint64_t from, to;
    if (!take_number(&at, 10, 9, &from) || !take_number(&at, 10, 9, &to)) return WEFT_ERR_MALFORMED;
    bool works = strncmp(at, "works ", 6) == 0;
    if (!works && strncmp(at, "failed ", 7) != 0) return WEFT_ERR_MALFORMED;
    at += works ? 6 : 7;
    if (!take_number(&at, 10, 18, &link.latency_ns) || !take_number(&at, 10, 18, &link.bytes_per_second))
        return WEFT_ERR_MALFORMED;
    const char *bar = strchr(at, '|');
    if (!bar || (size_t)(bar - at) >= sizeof link.lane || strlen(bar + 1) >= sizeof link.text)
        return WEFT_ERR_MALFORMED;
    memcpy(link.lane, at, (size_t)(bar - at));
    memcpy(link.text, bar + 1, strlen(bar + 1));
    link.from = (uint32_t)from;
    link.to = (uint32_t)to;
    link.state = works ? WEFT_LINK_WORKS : WEFT_LINK_FAILED;
    uint32_t before = table->link_count;
    enum weft_status status = weft_link_table_set(table, &link);
    if (status == WEFT_ERR_INVALID || (status == WEFT_OK && table->link_count == before))
        return WEFT_ERR_MALFORMED;
    return status;
}

/* Parses a host, `count` numbers and the end of the line. */
static bool take_numbers(const struct weft_link_table *table, const char *at, uint32_t *host_out,
                         uint32_t *numbers, int count)
{
    uint64_t host, number;
    if (!take_number(&at, 10, 9, &host) || host >= table->host_count) return false;
    for (int i = 0; i < count; i++) {
        if (!take_number(&at, 10, 9, &number)) return false;
        numbers[i] = (uint32_t)number;
    }
    *host_out = (uint32_t)host;
    return *at == 0;
}

static enum weft_status read_machine(struct weft_link_table *table, const char *at)
{
    uint32_t host, n[5];
    if (!take_numbers(table, at, &host, n, 5)) return WEFT_ERR_MALFORMED;
    struct weft_link_machine machine = {n[0], n[1], n[2], n[3], n[4]};
    if (!is_measured(&machine) || is_measured(&table->hosts[host].machine)) return WEFT_ERR_MALFORMED;
    return weft_link_table_set_machine(table, host, &machine);
}

static enum weft_status read_memory(struct weft_link_table *table, const char *at)
{
    uint32_t host, n[8] = {0}; /* older tables have seven */
    if (!take_numbers(table, at, &host, n, 8) && !take_numbers(table, at, &host, n, 7))
        return WEFT_ERR_MALFORMED;
    struct weft_link_memory memory = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
    if (!is_mapped(&memory) || is_mapped(&table->hosts[host].memory)) return WEFT_ERR_MALFORMED;
    return weft_link_table_set_memory(table, host, &memory);
}

/* Refuses other lengths than those of this build: the numbers would mean something else. */
static enum weft_status read_runs(struct weft_link_table *table, const char *at)
{
    uint32_t host, n[1 + WEFT_LINK_RUNS_NUMBERS];
    struct weft_link_runs runs;
    if (!take_numbers(table, at, &host, n, 1 + WEFT_LINK_RUNS_NUMBERS) || n[0] != WEFT_LINK_LENGTH_MIN)
        return WEFT_ERR_MALFORMED;
    memcpy(&runs, n + 1, sizeof runs);
    if (runs.ranks == 0 || table->hosts[host].runs.ranks > 0) return WEFT_ERR_MALFORMED;
    return weft_link_table_set_runs(table, host, &runs) < 0 ? WEFT_ERR_MALFORMED : WEFT_OK;
}

struct reader {
    struct weft_link_table *table;
    uint32_t line;
    bool ended;
};

static enum weft_status read_line(struct reader *reader, const char *line, struct weft_error *error)
{
    uint64_t number = 0;
    const char *at = line;
    enum weft_status status = WEFT_ERR_MALFORMED;
    if (reader->line == 1) {
        if (strncmp(line, "weft-links ", 11) == 0 && (at += 11, take_number(&at, 10, 9, &number)) &&
            *at == 0) {
            if (number == VERSION) return WEFT_OK;
            return weft_error_set(error, WEFT_ERR_VERSION,
                                  "the link table has version %" PRIu64 ", this build reads %d: probe again",
                                  number, VERSION);
        }
    } else if (!reader->ended && strncmp(line, "host ", 5) == 0) {
        status = read_host(reader->table, line + 5);
    } else if (!reader->ended && strncmp(line, "machine ", 8) == 0) {
        status = read_machine(reader->table, line + 8);
    } else if (!reader->ended && strncmp(line, "memory ", 7) == 0) {
        status = read_memory(reader->table, line + 7);
    } else if (!reader->ended && strncmp(line, "runs ", 5) == 0) {
        status = read_runs(reader->table, line + 5);
    } else if (!reader->ended && strncmp(line, "link ", 5) == 0) {
        status = read_link(reader->table, line + 5);
    } else if (!reader->ended && strncmp(line, "end ", 4) == 0) {
        at += 4;
        reader->ended =
            take_number(&at, 10, 9, &number) && *at == 0 &&
            number == reader->table->host_count + machine_count(reader->table) + reader->table->link_count;
        if (reader->ended) status = WEFT_OK;
    }
    if (status == WEFT_ERR_MALFORMED)
        weft_error_set(error, status, "line %" PRIu32 " of the link table cannot be read: probe again",
                       reader->line);
    else if (status < 0)
        weft_error_set(error, status, "line %" PRIu32 " of the link table: %s", reader->line,
                       weft_reason_text(status));
    return status;
}

enum weft_status weft_link_table_read(struct weft_env *env, const char *text, size_t bytes,
                                      struct weft_link_table **table_out, struct weft_error *error)
{
    struct reader reader = {0};
    enum weft_status status = WEFT_OK;
    if (bytes > WEFT_LINK_TABLE_BYTES_MAX)
        return weft_error_set(error, WEFT_ERR_LIMIT, "a link table of %zu bytes is too long", bytes);
    if (weft_link_table_create(env, &reader.table) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a link table");
    for (size_t at = 0; status == WEFT_OK && at < bytes;) {
        char line[LINE_BYTES_MAX];
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - (text + at)) : LINE_BYTES_MAX;
        reader.line++;
        if (length >= sizeof line || memchr(text + at, 0, length)) {
            status = weft_error_set(error, WEFT_ERR_MALFORMED,
                                    "line %" PRIu32 " of the link table is cut off or too long: probe again",
                                    reader.line);
            break;
        }
        memcpy(line, text + at, length);
        line[length] = 0;
        status = read_line(&reader, line, error);
        at += length + 1;
    }
    if (status == WEFT_OK && !reader.ended) {
        status = weft_error_set(error, WEFT_ERR_MALFORMED,
                                "the link table ends after line %" PRIu32 ", before its end: probe again",
                                reader.line);
    }
    if (status < 0) weft_link_table_free(reader.table);
    else *table_out = reader.table;
    return status;
}
