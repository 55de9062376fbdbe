/* hex.h - bytes as hexadecimal digits. */
#ifndef WEFT_BASE_HEX_H
#define WEFT_BASE_HEX_H

#include <stddef.h>
#include <stdint.h>

/* Writes 2 * bytes lower-case digits and a NUL. */
static inline void weft_hex_encode(const uint8_t *data, size_t bytes, char *text_out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        text_out[2 * i] = digits[data[i] >> 4];
        text_out[2 * i + 1] = digits[data[i] & 15];
    }
    text_out[2 * bytes] = 0;
}

static inline uint8_t weft_hex_digit(char digit)
{
    return (uint8_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/* Precondition: text begins with 2 * bytes lower-case digits. */
static inline void weft_hex_decode(const char *text, size_t bytes, uint8_t *data_out)
{
    for (size_t i = 0; i < bytes; i++)
        data_out[i] = (uint8_t)(weft_hex_digit(text[2 * i]) << 4 | weft_hex_digit(text[2 * i + 1]));
}

#endif
