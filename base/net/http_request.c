/* http_request.c - see http_request.h. Lines end with CR LF; a bare LF is accepted. Bodies are not read. */
#include "base/net/http_request.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

struct text {
    const char *data;
    size_t bytes;
};

/* Removes the next line, without its end, from the input. false: no complete line is left. */
static bool take_line(struct text *rest, struct text *line)
{
    const char *end = memchr(rest->data, '\n', rest->bytes);
    if (!end) return false;
    *line = (struct text){rest->data, (size_t)(end - rest->data)};
    rest->data += line->bytes + 1;
    rest->bytes -= line->bytes + 1;
    if (line->bytes > 0 && line->data[line->bytes - 1] == '\r') line->bytes--;
    return true;
}

/* Removes the characters up to the next space. */
static struct text take_word(struct text *line)
{
    const char *space = memchr(line->data, ' ', line->bytes);
    struct text word = {line->data, space ? (size_t)(space - line->data) : line->bytes};
    const size_t used = word.bytes + (space != NULL);
    line->data += used;
    line->bytes -= used;
    return word;
}

static bool is_text(struct text text, const char *wanted)
{
    return text.bytes == strlen(wanted) && memcmp(text.data, wanted, text.bytes) == 0;
}

static bool begins_with(struct text text, const char *prefix)
{
    const size_t bytes = strlen(prefix);
    return text.bytes >= bytes && strncasecmp(text.data, prefix, bytes) == 0;
}

static bool is_printable(struct text text)
{
    for (size_t i = 0; i < text.bytes; i++)
        if ((unsigned char)text.data[i] <= ' ' || text.data[i] == 0x7f) return false;
    return true;
}

/* "/path?query" or "http://host/path?query". */
static int read_target(struct text target, struct http_request *out)
{
    if (begins_with(target, "http://")) {
        const char *slash = memchr(target.data + 7, '/', target.bytes - 7);
        const size_t skipped = slash ? (size_t)(slash - target.data) : target.bytes;
        target.data += skipped;
        target.bytes -= skipped;
        if (target.bytes == 0) target = (struct text){"/", 1};
    }
    const char *query = memchr(target.data, '?', target.bytes);
    if (query) target.bytes = (size_t)(query - target.data);
    if (target.bytes == 0 || target.data[0] != '/' || !is_printable(target)) return 400;
    if (target.bytes > HTTP_PATH_BYTES_MAX) return 414;
    memcpy(out->path, target.data, target.bytes);
    out->path[target.bytes] = 0;
    return HTTP_OK;
}

static int read_first_line(struct text line, struct http_request *out)
{
    const struct text method = take_word(&line), target = take_word(&line);
    if (!begins_with(line, "HTTP/") || line.bytes != 8) return 400;
    if (memcmp(line.data, "HTTP/1.", 7) != 0) return 505;
    out->is_head = is_text(method, "HEAD");
    if (!out->is_head && !is_text(method, "GET")) return method.bytes > 0 && is_printable(method) ? 405 : 400;
    return read_target(target, out);
}

/* Two Authorization fields, and a token that is too long, are errors: neither is accepted. */
static int read_field(struct text line, struct http_request *out)
{
    static const char name[] = "Authorization:", scheme[] = "Bearer ";
    if (!begins_with(line, name)) return HTTP_OK;
    line.data += sizeof name - 1;
    line.bytes -= sizeof name - 1;
    while (line.bytes > 0 && (line.data[0] == ' ' || line.data[0] == '\t')) line.data++, line.bytes--;
    while (line.bytes > 0 && (line.data[line.bytes - 1] == ' ' || line.data[line.bytes - 1] == '\t'))
        line.bytes--;
    if (!begins_with(line, scheme)) return HTTP_OK;
    line.data += sizeof scheme - 1;
    line.bytes -= sizeof scheme - 1;
    if (out->token[0] || line.bytes == 0 || line.bytes > HTTP_TOKEN_BYTES_MAX || !is_printable(line))
        return 400;
    memcpy(out->token, line.data, line.bytes);
    out->token[line.bytes] = 0;
    return HTTP_OK;
}

int http_request_parse(const char *data, size_t bytes, struct http_request *out)
{
    struct http_request request = {.path = ""};
    struct text rest = {data, bytes < HTTP_HEAD_BYTES_MAX ? bytes : HTTP_HEAD_BYTES_MAX}, line;
    int code = HTTP_INCOMPLETE;
    while (take_line(&rest, &line)) {
        if (code == HTTP_INCOMPLETE && line.bytes == 0) continue; /* RFC 9112: blank lines before a request */
        if (line.bytes == 0) {
            *out = request;
            return HTTP_OK;
        }
        code = code == HTTP_INCOMPLETE ? read_first_line(line, &request) : read_field(line, &request);
        if (code != HTTP_OK) return code;
    }
    return bytes >= HTTP_HEAD_BYTES_MAX ? 431 : HTTP_INCOMPLETE;
}
