/* little_endian.h - reads and writes little-endian numbers in messages and files, at any address. The caller
 * checks bounds. */
#ifndef WEFT_BASE_LITTLE_ENDIAN_H
#define WEFT_BASE_LITTLE_ENDIAN_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put_le16(uint8_t *out, uint16_t value)
{
    value = htole16(value);
    memcpy(out, &value, sizeof value);
}

static inline void put_le32(uint8_t *out, uint32_t value)
{
    value = htole32(value);
    memcpy(out, &value, sizeof value);
}

static inline void put_le64(uint8_t *out, uint64_t value)
{
    value = htole64(value);
    memcpy(out, &value, sizeof value);
}

static inline uint16_t get_le16(const uint8_t *data)
{
    uint16_t value;
    memcpy(&value, data, sizeof value);
    return le16toh(value);
}

static inline uint32_t get_le32(const uint8_t *data)
{
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return le32toh(value);
}

static inline uint64_t get_le64(const uint8_t *data)
{
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return le64toh(value);
}

#endif
