/* announcement.c - see announcement.h: little-endian, at most ANNOUNCEMENT_BYTES_MAX bytes, checked.
 *
 *      0  magic "WFTM"    4  version    8  epoch    12  rank    16  next id    20  ranks
 *     24  tag            32  hash of all members    40  the first members, 4 bytes each */
#include "client/comm/announcement.h"

#include <stdio.h>
#include <string.h>

#include "base/little_endian.h"
#include "proto/proto.h"

#define MAGIC 0x4d544657u
#define VERSION 1u
#define FIXED_BYTES 40u
_Static_assert(FIXED_BYTES + 4 * ANNOUNCEMENT_LISTED_MAX == ANNOUNCEMENT_BYTES_MAX,
               "the list fills the rest");

static uint32_t listed_of(uint32_t ranks)
{
    return ranks < ANNOUNCEMENT_LISTED_MAX ? ranks : ANNOUNCEMENT_LISTED_MAX;
}

void announcement_set_members(struct client_announcement *announcement, const uint32_t *members,
                              uint32_t ranks)
{
    announcement->ranks = ranks;
    announcement->listed = listed_of(ranks);
    announcement->hash = weft_weight_hash(members, ranks * sizeof *members);
    memcpy(announcement->members, members, announcement->listed * sizeof *members);
}

uint32_t announcement_write(const struct client_announcement *announcement,
                            uint8_t out[ANNOUNCEMENT_BYTES_MAX])
{
    put_le32(out, MAGIC);
    put_le32(out + 4, VERSION);
    put_le32(out + 8, announcement->epoch);
    put_le32(out + 12, announcement->rank);
    put_le32(out + 16, announcement->next_id);
    put_le32(out + 20, announcement->ranks);
    put_le64(out + 24, announcement->tag);
    put_le64(out + 32, announcement->hash);
    for (uint32_t i = 0; i < announcement->listed; i++)
        put_le32(out + FIXED_BYTES + 4 * i, announcement->members[i]);
    return FIXED_BYTES + 4 * announcement->listed;
}

bool announcement_read(const uint8_t *data, size_t bytes, struct client_announcement *announcement_out)
{
    if (bytes < FIXED_BYTES || get_le32(data) != MAGIC || get_le32(data + 4) != VERSION) return false;
    struct client_announcement *out = announcement_out;
    *out = (struct client_announcement){.epoch = get_le32(data + 8),
                                        .rank = get_le32(data + 12),
                                        .next_id = get_le32(data + 16),
                                        .ranks = get_le32(data + 20),
                                        .tag = get_le64(data + 24),
                                        .hash = get_le64(data + 32)};
    out->listed = listed_of(out->ranks);
    if (bytes != FIXED_BYTES + 4 * out->listed) return false;
    for (uint32_t i = 0; i < out->listed; i++) out->members[i] = get_le32(data + FIXED_BYTES + 4 * i);
    return true;
}

bool announcement_matches(const struct client_announcement *a, const struct client_announcement *b)
{
    return a->ranks == b->ranks && a->tag == b->tag && a->hash == b->hash;
}

void announcement_describe_difference(const struct client_announcement *theirs,
                                      const struct client_announcement *mine, char *out, size_t out_bytes)
{
    uint32_t i = 0;
    while (i < theirs->listed && i < mine->listed && theirs->members[i] == mine->members[i]) i++;
    if (i < theirs->listed && i < mine->listed)
        snprintf(out, out_bytes, "names rank %u at place %u of %u, this rank names %u at place %u of %u",
                 theirs->members[i], i, theirs->ranks, mine->members[i], i, mine->ranks);
    else if (theirs->ranks != mine->ranks)
        snprintf(out, out_bytes, "names %u ranks, this rank %u", theirs->ranks, mine->ranks);
    else if (theirs->tag != mine->tag)
        snprintf(out, out_bytes, "has tag %llu, this rank %llu", (unsigned long long)theirs->tag,
                 (unsigned long long)mine->tag);
    else snprintf(out, out_bytes, "names other ranks from place %u on", i);
}
