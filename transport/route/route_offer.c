/* route_offer.c - what an endpoint offers, as bytes, and the rule by which two offers make one choice. Pure.
 *
 *   offer   magic u32 | version u32 | nonce's hash u32 | id u32 | host u64 | space u64 | fingerprint u64 | links u64 |
 *           bytes u32 (of all) | check u32 | ways
 *   way     kind u8 | 0 u8 | bytes u16 | the backend's own address            all little endian
 *
 * The check is over everything but itself and the nonce's hash, which is compared. */
#include <string.h>

#include "transport/route/route.h"

enum { MAGIC = 0x54555257 /* "WRUT" */, VERSION = 1, FIXED_BYTES = 56, WAY_BYTES = 4 };
#define WEIGHED_BYTES ((uint64_t)1 << 20) /* links are compared by the time of such a message, there and back */

const char *const route_kind_names[ROUTE_KINDS] = {"shm", "verbs", "ucx"};

static uint32_t check_of(const uint8_t *data, size_t bytes)
{
    uint64_t sum = WEFT_FNV_BASIS;
    for (size_t i = 0; i < bytes; i++) {
        if ((i >= 8 && i < 12) || (i >= 52 && i < 56)) continue;
        sum = weft_fnv(sum, data[i]);
    }
    return (uint32_t)(sum >> 16);
}

size_t route_offer_encode(const struct route_offer *offer, uint8_t out[WEFT_TRANSPORT_ADDRESS_BYTES_MAX])
{
    size_t at = FIXED_BYTES;
    put_le32(out, MAGIC);
    put_le32(out + 4, VERSION);
    put_le32(out + 8, offer->nonce_hash);
    put_le32(out + 12, offer->id);
    put_le64(out + 16, offer->host);
    put_le64(out + 24, offer->space);
    put_le64(out + 32, offer->fingerprint);
    put_le64(out + 40, offer->links);
    for (uint32_t i = 0; i < offer->way_count; i++) {
        const struct route_way *way = &offer->ways[i];
        if (at + WAY_BYTES + way->bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return 0;
        put_le32(out + at, way->kind | way->bytes << 16);
        memcpy(out + at + WAY_BYTES, way->blob, way->bytes);
        at += WAY_BYTES + way->bytes;
    }
    put_le32(out + 48, (uint32_t)at);
    put_le32(out + 52, check_of(out, at));
    return at;
}

/* The ways, up to the last byte; none twice, none unknown. */
static bool ways_read(struct route_offer *offer, const uint8_t *data, size_t bytes)
{
    uint32_t seen = 0;
    size_t at = FIXED_BYTES;
    for (; at < bytes && offer->way_count < ROUTE_KINDS; offer->way_count++) {
        if (bytes - at < WAY_BYTES) return false;
        struct route_way *way = &offer->ways[offer->way_count];
        *way = (struct route_way){.kind = data[at], .blob = data + at + WAY_BYTES, .bytes = get_le32(data + at) >> 16};
        if (data[at + 1] != 0 || way->kind >= ROUTE_KINDS || seen & 1u << way->kind) return false;
        if (way->bytes == 0 || way->bytes > bytes - at - WAY_BYTES) return false;
        seen |= 1u << way->kind;
        at += WAY_BYTES + way->bytes;
    }
    return at == bytes && offer->way_count > 0;
}

enum weft_status route_offer_decode(const void *data, size_t bytes, struct route_offer *offer_out)
{
    const uint8_t *at = data;
    if (bytes < FIXED_BYTES || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX || get_le32(at) != MAGIC) return WEFT_ERR_MALFORMED;
    if (get_le32(at + 4) != VERSION) return WEFT_ERR_VERSION;
    if (get_le32(at + 48) != bytes || get_le32(at + 52) != check_of(at, bytes)) return WEFT_ERR_MALFORMED;
    *offer_out = (struct route_offer){
        .nonce_hash = get_le32(at + 8), .id = get_le32(at + 12), .host = get_le64(at + 16), .space = get_le64(at + 24),
        .fingerprint = get_le64(at + 32), .links = get_le64(at + 40)};
    return ways_read(offer_out, at, bytes) ? WEFT_OK : WEFT_ERR_MALFORMED;
}

/* ---- the rule ---- */

static bool offers(const struct route_offer *offer, int kind)
{
    for (uint32_t i = 0; i < offer->way_count; i++)
        if (offer->ways[i].kind == kind) return true;
    return false;
}

/* Can it work between the two, from what their offers say? */
static enum route_reason obstacle(const struct route_offer *mine, const struct route_offer *theirs, bool secret, int kind)
{
    bool one_host = mine->host != 0 && mine->host == theirs->host;
    if (!offers(mine, kind)) return ROUTE_NOT_HERE;
    if (!offers(theirs, kind)) return ROUTE_NOT_THERE;
    if (strcmp(route_kind_names[kind], "shm") == 0) { /* its sockets have no names outside a network namespace */
        if (!one_host) return ROUTE_OTHER_HOST;
        if (mine->space != theirs->space) return ROUTE_OTHER_SPACE;
    }
    if (strcmp(route_kind_names[kind], "verbs") == 0 && !one_host && !secret) return ROUTE_NO_SECRET;
    return ROUTE_LATER;
}

static uint32_t host_index(const struct weft_link_table *links, uint64_t fingerprint)
{
    uint32_t count = weft_link_table_host_count(links), index = 0;
    while (index < count && weft_link_table_host_fingerprint(links, index) != fingerprint) index++;
    return index == count ? UINT32_MAX : index;
}

/* The lane of a kind in a link table: its name alone or with what follows a colon. */
static bool lane_is(const char *lane, const char *name)
{
    size_t length = strlen(name);
    return strncmp(lane, name, length) == 0 && (lane[length] == 0 || lane[length] == ':');
}

/* One direction: the time of its quickest lane; 0: never measured; WEFT_NEVER: it was, and none works. */
static uint64_t direction_ns(const struct weft_link_table *links, uint32_t from, uint32_t to, int kind)
{
    uint64_t best_ns = 0;
    for (uint32_t i = 0; i < weft_link_table_count(links); i++) {
        const struct weft_link *link = weft_link_table_get(links, i);
        if (link->from != from || link->to != to || !lane_is(link->lane, route_kind_names[kind])) continue;
        uint64_t time_ns = weft_link_time_ns(link, WEIGHED_BYTES);
        if (best_ns == 0 || time_ns < best_ns) best_ns = time_ns > 0 ? time_ns : 1;
    }
    return best_ns;
}

/* There and back; 0: not measured in both directions; WEFT_NEVER: does not work in one of them. */
static uint64_t measured_ns(const struct weft_link_table *links, uint32_t one, uint32_t other, int kind)
{
    uint64_t there_ns = direction_ns(links, one, other, kind), back_ns = direction_ns(links, other, one, kind);
    if (there_ns == WEFT_NEVER || back_ns == WEFT_NEVER) return WEFT_NEVER;
    return there_ns == 0 || back_ns == 0 ? 0 : there_ns + back_ns;
}

int route_choose(const struct route_offer *mine, const struct route_offer *theirs, bool secret, const struct weft_link_table *links,
                 enum route_reason reasons_out[ROUTE_KINDS])
{
    const struct route_offer *first = mine->id <= theirs->id ? mine : theirs;
    uint32_t here = UINT32_MAX, there = UINT32_MAX;
    int taken = -1;
    uint64_t taken_ns = 0;
    if (links && mine->links != 0 && mine->links == theirs->links) {
        here = host_index(links, mine->fingerprint);
        there = host_index(links, theirs->fingerprint);
    }
    for (int kind = 0; kind < ROUTE_KINDS; kind++) reasons_out[kind] = obstacle(mine, theirs, secret, kind);
    for (uint32_t i = 0; i < first->way_count; i++) {
        int kind = first->ways[i].kind;
        if (reasons_out[kind] != ROUTE_LATER) continue;
        uint64_t time_ns = here != UINT32_MAX && there != UINT32_MAX ? measured_ns(links, here, there, kind) : 0;
        if (time_ns == WEFT_NEVER) reasons_out[kind] = ROUTE_BAD_LINK;
        /* What was measured goes before what was not; of two that were, the quicker; else the order. */
        else if (taken < 0 || (time_ns > 0 && (taken_ns == 0 || time_ns < taken_ns))) taken = kind, taken_ns = time_ns;
    }
    if (taken >= 0) reasons_out[taken] = ROUTE_TAKEN;
    return taken;
}
