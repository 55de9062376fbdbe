/* fuzz_http_request.c - head of an HTTP request: for any bytes, a result does not change when more bytes
 * follow, and what is accepted is printable and within its limits. */
#include <stdlib.h>
#include <string.h>

#include "base/net/http_request.h"
#include "tests/fuzz/fuzz.h"

static void check_accepted(const struct http_request *request)
{
    if (request->path[0] != '/' || strlen(request->path) > HTTP_PATH_BYTES_MAX ||
        strlen(request->token) > HTTP_TOKEN_BYTES_MAX)
        abort();
    for (const char *c = request->path; *c; c++)
        if ((unsigned char)*c <= ' ') abort();
    for (const char *c = request->token; *c; c++)
        if ((unsigned char)*c <= ' ') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct http_request request, whole;
    int decided = HTTP_INCOMPLETE;
    /* exact copies: a read beyond the end is detected */
    for (size_t part = 0; part <= bytes && bytes <= 600; part++) {
        char *copy = malloc(part ? part : 1);
        if (!copy) abort();
        memcpy(copy, data, part);
        const int code = http_request_parse(copy, part, &request);
        free(copy);
        if (code == HTTP_OK) check_accepted(&request);
        if (decided != HTTP_INCOMPLETE && code != decided) abort();
        decided = code;
    }
    if (http_request_parse((const char *)data, bytes, &whole) == HTTP_OK) check_accepted(&whole);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const heads[] = {
        "GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer abc\r\n\r\n",
        "HEAD http://h:80/a?b HTTP/1.0\r\nX: y\r\n\r\n",
        "\r\nGET / HTTP/1.1\nauthorization:\tbearer\tq\n\n",
        "POST / HTTP/2.0\r\n\r\n",
    };
    const char *head = heads[number % 4];
    size_t bytes = strlen(head) < capacity ? strlen(head) : capacity;
    memcpy(out, head, bytes);
    if (number > 4) out[number * 7 % bytes] ^= (uint8_t)(1u << number % 8);
    return bytes;
}
