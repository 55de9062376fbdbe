/* bootstrap_fixture.c - see bootstrap_fixture.h. */
#include "tests/transport/bootstrap/bootstrap_fixture.h"

#include <dirent.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

static void keep(struct fixture_peer *fixture_peer, int *descriptors, uint32_t count)
{
    for (uint32_t i = 0; i < fixture_peer->descriptor_count; i++) close(fixture_peer->descriptors[i]);
    fixture_peer->descriptor_count = count;
    for (uint32_t i = 0; i < count; i++) {
        fixture_peer->descriptors[i] = descriptors[i];
        descriptors[i] = -1;
    }
}

static void on_connected(void *owner, struct bootstrap_peer *peer, const void *parameters, size_t bytes,
                         int *descriptors, uint32_t count)
{
    struct fixture_peer *fixture_peer = owner;
    assert_ptr_equal(fixture_peer->peer, peer);
    assert_int_equal(bootstrap_peer_id(peer), fixture_peer->id);
    assert_int_equal(fixture_peer->disconnected, 0);
    fixture_peer->connected++;
    fixture_peer->parameter_bytes = (uint32_t)bytes;
    memcpy(fixture_peer->parameters, parameters, bytes);
    keep(fixture_peer, descriptors, count);
    if (!fixture_peer->forget_in_connected) return;
    bootstrap_forget(peer);
    fixture_peer->peer = NULL;
}

static void on_message(void *owner, struct bootstrap_peer *peer, const void *data, size_t bytes,
                       int *descriptors, uint32_t count)
{
    struct fixture_peer *fixture_peer = owner;
    assert_int_equal(fixture_peer->connected, 1);
    fixture_peer->messages++;
    fixture_peer->message_bytes = (uint32_t)bytes;
    memcpy(fixture_peer->message, data, bytes);
    keep(fixture_peer, descriptors, count);
}

static void on_disconnected(void *owner, struct bootstrap_peer *peer, enum weft_status status,
                            const char *text)
{
    struct fixture_peer *fixture_peer = owner;
    assert_ptr_equal(fixture_peer->peer, peer);
    assert_true(status < 0 && text[0] != 0);
    fixture_peer->disconnected++;
    fixture_peer->status = status;
    fixture_peer->gone_ns = weft_now_ns(weft_env_system());
    snprintf(fixture_peer->text, sizeof fixture_peer->text, "%s", text);
    bootstrap_forget(peer);
    fixture_peer->peer = NULL;
}

void place_options(struct bootstrap_options *options, enum bootstrap_family family, uint32_t id,
                   const char *secret)
{
    bootstrap_options_init(options);
    options->family = family;
    options->id = id;
    options->nonce = 0xfeedf00d12345678ull;
    options->secret = secret;
    options->secret_bytes = secret ? strlen(secret) : 0;
    options->callbacks = (struct bootstrap_callbacks){on_connected, on_message, on_disconnected};
}

void place_open_in(struct place *place, struct weft_env *env, const struct bootstrap_options *options)
{
    struct weft_error error = {0};
    place->id = options->id;
    if (bootstrap_open(env, options, &place->bootstrap, &error) != WEFT_OK) fail_msg("%s", error.text);
}

void place_open(struct place *place, const struct bootstrap_options *options)
{
    place_open_in(place, weft_env_system(), options);
}

void place_close(struct place *place)
{
    bootstrap_close(place->bootstrap);
    place->bootstrap = NULL;
}

enum weft_status place_connect(struct place *place, struct fixture_peer *fixture_peer,
                               const struct place *other, const void *parameters, size_t bytes,
                               const int *descriptors, uint32_t count)
{
    size_t address_bytes;
    const void *address = bootstrap_address(other->bootstrap, &address_bytes);
    bool forget = fixture_peer->forget_in_connected;
    *fixture_peer = (struct fixture_peer){.place = place, .id = other->id, .forget_in_connected = forget};
    return bootstrap_connect(place->bootstrap, other->id, address, address_bytes, parameters, bytes,
                             descriptors, count, fixture_peer, &fixture_peer->peer);
}

void place_step(struct place *const *places, int count)
{
    struct pollfd polls[16];
    int work = 0, polled = 0;
    for (int i = 0; i < count; i++) {
        if (!places[i]->bootstrap) continue;
        if (polled < 16)
            polls[polled++] = (struct pollfd){.fd = bootstrap_fd(places[i]->bootstrap), .events = POLLIN};
        work += bootstrap_progress(places[i]->bootstrap, 16);
    }
    if (work == 0) poll(polls, (nfds_t)polled, 10); /* all further events use the descriptors */
}

int unproven_connect(const struct place *place)
{
    struct socket_address where;
    assert_int_equal(bootstrap_address_decode(place->bootstrap, place->bootstrap->own_address.address,
                                              place->bootstrap->own_address.address_bytes, &where),
                     WEFT_OK);
    int fd = socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval patience = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (const struct sockaddr *)&where.storage, where.bytes), 0);
    return fd;
}

int open_descriptor_count(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count - 3; /* ".", ".." and the folder's own descriptor */
}
