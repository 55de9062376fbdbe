/* log_line.c - see log_line.h. JSON escapes every byte that is not printable ASCII, so a line is valid for
 * any job name, as base/json_text.h does for files. */
#include "base/log/log_line.h"

#include <stdio.h>
#include <string.h>

#define ESCAPE_BYTES 6u

/* Appends a JSON string to out. Returns the new length; a text that does not fit is cut. */
static size_t add_string(char *out, size_t used, const char *text)
{
    out[used++] = '"';
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (used + ESCAPE_BYTES + 64 > WEFT_LOG_LINE_BYTES) break;
        if (*at == '"' || *at == '\\') out[used++] = '\\', out[used++] = (char)*at;
        else if (*at < 0x20 || *at > 0x7e) used += (size_t)snprintf(out + used, 7, "\\u%04x", *at);
        else out[used++] = (char)*at;
    }
    out[used++] = '"';
    return used;
}

static size_t add_text(char *out, size_t used, const char *text)
{
    const size_t bytes = strlen(text);
    memcpy(out + used, text, bytes);
    return used + bytes;
}

static size_t format_json(const struct weft_log_line *line, const struct weft_log_source *source, char *out)
{
    struct tm parts;
    char start[80];
    gmtime_r(&line->time.tv_sec, &parts);
    size_t used = strftime(out, 64, "{\"time\":\"%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(start, sizeof start, ".%03ldZ\",\"level\":\"%s\",\"module\":", line->time.tv_nsec / 1000000,
             weft_log_level_name(line->level));
    used = add_string(out, add_text(out, used, start), line->module);
    if (source->job[0]) used = add_string(out, add_text(out, used, ",\"job\":"), source->job);
    if (source->role) {
        snprintf(start, sizeof start, ",\"%.20s\":%u", source->role, source->index);
        used = add_text(out, used, start);
    }
    used = add_string(out, add_text(out, used, ",\"text\":"), line->text);
    used = add_text(out, used, "}\n");
    out[used] = 0;
    return used;
}

size_t weft_log_line_format(const struct weft_log_line *line, enum weft_log_format format,
                            const struct weft_log_source *source, char out[WEFT_LOG_LINE_BYTES])
{
    struct tm parts;
    char day[32];
    if (format == WEFT_LOG_JSON) return format_json(line, source, out);
    localtime_r(&line->time.tv_sec, &parts);
    strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &parts);
    int bytes =
        snprintf(out, WEFT_LOG_LINE_BYTES, "%s.%03ld %s %.64s: %.1100s\n", day, line->time.tv_nsec / 1000000,
                 weft_log_level_name(line->level), line->module, line->text);
    return bytes > 0 ? (size_t)bytes : 0;
}
