/* ucx_lane.c - the lanes that UCX chose towards a peer. UCX 1.13 prints them as text only, one line per
 * lane: "lane[0]:  0:rc_verbs/mlx5_0:1.0 md[0] -> ... rma_bw#0 am wireup", and with put and get a line
 * "put[0]: 0..<short>..81..<bcopy>.." per lane that carries puts. ucp_ep_query of UCX 1.15 and later lists
 * lanes, but not their use, so the text is parsed everywhere. Unknown text means "no remote access":
 * slower, never wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx.h"

static bool has_prefix(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "rc_verbs/mlx5_0:1" of " 0:rc_verbs/mlx5_0:1.0 md[0] ..."; the device path (".0") is cut off. */
static void read_name(const char *line, char *out, size_t out_bytes)
{
    const char *at = strchr(line, ']');
    at = at ? strchr(at + 2, ':') : NULL;
    out[0] = 0;
    if (!at) return;
    at++;
    size_t bytes = strcspn(at, " \n");
    for (size_t dot = bytes; dot > 0; dot--) {
        if (at[dot] == '.') {
            bytes = dot;
            break;
        }
    }
    snprintf(out, out_bytes, "%.*s", (int)(bytes < out_bytes ? bytes : out_bytes - 1), at);
}

/* Lanes where the kernel copies between address spaces during the call: nothing is written after it
 * returns. Not rc and dc: after a forced close UCX 1.13 completes a rendezvous while its queue pair may
 * still write, and a buffer must be free after its completion. There payloads use fragments. */
static bool reaches_memory(const char *name)
{
    static const char *const able[] = {"cma", "xpmem", "knem"};
    for (size_t i = 0; i < sizeof able / sizeof *able; i++) {
        if (has_prefix(name, able[i])) return true;
    }
    return false;
}

static bool reaches_without_processor(const char *name)
{
    return has_prefix(name, "rc") || has_prefix(name, "dc");
}

/* Whether a line shows puts on a lane that needs no processor. */
static bool puts_by_hardware(const char *words)
{
    for (const char *at = strstr(words, " put["); at; at = strstr(at + 1, " put[")) {
        char label[24], name[64];
        snprintf(label, sizeof label, "lane[%lu]:", strtoul(at + 5, NULL, 10));
        const char *line = strstr(words, label);
        if (line) read_name(line, name, sizeof name);
        if (line && reaches_without_processor(name)) return true;
    }
    return false;
}

static void read_lane(struct ucx_peer *ucx_peer, const char *line)
{
    char name[64];
    read_name(line, name, sizeof name);
    if (!name[0]) return;
    bool allowed = ucx_peer->endpoint->settings.direct;
    if (reaches_memory(name) && strstr(line, " rma_bw#")) ucx_peer->direct = allowed;
    size_t used = strlen(ucx_peer->lanes);
    if (strstr(ucx_peer->lanes, name) || used + strlen(name) + 4 > sizeof ucx_peer->lanes) return;
    snprintf(ucx_peer->lanes + used, sizeof ucx_peer->lanes - used, "%s%s", used ? " + " : "", name);
}

void ucx_lane_learn(struct ucx_peer *ucx_peer)
{
    char words[4096] = "";
    ucx_peer->lanes[0] = 0;
    ucx_peer->direct = ucx_peer->remote_access = false;
    /* a longer text is cut: fewer lanes are known */
    FILE *stream = fmemopen(words, sizeof words - 1, "w");
    if (!stream) return;
    ucp_ep_print_info(ucx_peer->ep, stream);
    fclose(stream);
    ucx_peer->remote_access = ucx_peer->endpoint->settings.direct && puts_by_hardware(words);
    for (char *line = strstr(words, "lane["); line; line = strstr(line + 1, "lane[")) {
        char *end = strchr(line, '\n');
        if (!end) return;
        *end = 0;
        read_lane(ucx_peer, line);
        *end = '\n';
        line = end;
    }
}

void ucx_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    const struct ucx_peer *ucx_peer = peer->backend;
    const char *payloads = ucx_peer->direct ? "large payloads by UCX's rendezvous" : "payloads in fragments";
    const char *access = ucx_peer->remote_access ? "put and get by remote access" : "put and get by messages";
    if (ucx_peer->lanes[0]) snprintf(out, bytes, "ucx %s, %s, %s", ucx_peer->lanes, payloads, access);
    else snprintf(out, bytes, "%s", transport->name);
}
