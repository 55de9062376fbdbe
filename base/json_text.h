/* json_text.h - writes a text as a JSON string. Bytes that are not printable ASCII become \u00XX, so the
 * output is valid JSON for any host or job name. */
#ifndef WEFT_BASE_JSON_TEXT_H
#define WEFT_BASE_JSON_TEXT_H

#include <stdio.h>

static inline void weft_json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\') fprintf(out, "\\%c", *at);
        else if (*at < 0x20 || *at > 0x7e) fprintf(out, "\\u%04x", *at);
        else fputc(*at, out);
    }
    fputc('"', out);
}

#endif
