/* http_request.h - the head of an HTTP request: method, path, token. Internal to base; untrusted bytes. */
#ifndef WEFT_BASE_NET_HTTP_REQUEST_H
#define WEFT_BASE_NET_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_HEAD_BYTES_MAX 8192u
#define HTTP_PATH_BYTES_MAX 255u
#define HTTP_TOKEN_BYTES_MAX 255u

struct http_request {
    bool is_head;                         /* HEAD; otherwise GET */
    char path[HTTP_PATH_BYTES_MAX + 1];   /* without query */
    char token[HTTP_TOKEN_BYTES_MAX + 1]; /* of "Authorization: Bearer"; "": none */
};

enum { HTTP_INCOMPLETE = 0, HTTP_OK = 200 };
/* Returns HTTP_INCOMPLETE while the blank line that ends the head is missing, HTTP_OK with *out written, or
 * the code of the error: 400, 405, 414, 431, 505. */
int http_request_parse(const char *data, size_t bytes, struct http_request *out);

#endif
