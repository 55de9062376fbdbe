/* hello.c - see hello.h. */
#include "tools/doctor/hello.h"

#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tools/doctor/machine.h"
#include "tools/net_device.h"

#define PURPOSE_ASKER "weft-doctor-asker"
#define PURPOSE_LISTENER "weft-doctor-listener"

int64_t hello_wall_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void hello_draw_challenge(uint8_t *out)
{
    for (size_t i = 0; i < WEFT_NONCE_BYTES; i += 8) {
        uint64_t word = weft_random_u64(weft_env_system());
        memcpy(out + i, &word, 8);
    }
}

bool hello_authenticate(int fd, const char *secret, bool client, const uint8_t *mine, const uint8_t *theirs,
                        uint32_t seconds)
{
    uint8_t own[WEFT_PROOF_BYTES], expected[WEFT_PROOF_BYTES], got[WEFT_PROOF_BYTES];
    const char *own_purpose = client ? PURPOSE_ASKER : PURPOSE_LISTENER;
    const char *other_purpose = client ? PURPOSE_LISTENER : PURPOSE_ASKER;
    if (!secret) secret = "none";
    if (weft_proof_make(secret, own_purpose, theirs, "doctor", "doctor", own) < 0) return false;
    if (weft_proof_make(secret, other_purpose, mine, "doctor", "doctor", expected) < 0) return false;
    if (client && !doctor_send_all(fd, own, sizeof own, seconds)) return false;
    if (!doctor_recv_all(fd, got, sizeof got, seconds)) return false;
    if (!weft_proof_check(got, sizeof got, expected)) return false;
    return client || doctor_send_all(fd, own, sizeof own, seconds);
}

uint64_t hello_nonce(const uint8_t *client, const uint8_t *listener)
{
    uint64_t a, b;
    memcpy(&a, client, 8);
    memcpy(&b, listener, 8);
    return a ^ (b << 1 | b >> 63);
}

void hello_set_nodelay(int fd)
{
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static uint32_t mtu_of(int fd, const char *device)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%.*s", IFNAMSIZ - 1, device);
    return ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0 ? (uint32_t)request.ifr_mtu : 0;
}

/* FNV-1a hash of the boot id of the kernel. */
static uint64_t kernel_number(void)
{
    char text[64];
    if (!machine_text("", "/proc/sys/kernel/random/boot_id", text, sizeof text)) return 0;
    return weft_fnv_bytes(WEFT_FNV_BASIS, text, strlen(text));
}

void hello_describe_host(int fd, struct hello_host *about)
{
    memset(about, 0, sizeof *about);
    if (gethostname(about->name, sizeof about->name - 1) != 0) about->name[0] = 0;
    tool_net_device(fd, about->device, sizeof about->device);
    about->mtu = mtu_of(fd, about->device);
    about->fingerprint = weft_host_fingerprint("/");
    about->kernel = kernel_number();
    about->wall_ns = hello_wall_clock_ns();
}
