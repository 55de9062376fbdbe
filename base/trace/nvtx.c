/* nvtx.c - see nvtx.h. The only file that includes NVTX. Strings and categories are registered at their first
 * use, in tables with one writer for each entry: a thread that loses the race uses the text itself. */
#include "base/trace/nvtx.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

_Atomic bool weft_nvtx_on_flag;

#ifdef WEFT_HAS_NVTX
#include <nvtx3/nvToolsExt.h>

enum { STRINGS_MAX = 64, CATEGORIES_MAX = 32 };

static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;
static struct string {
    const char *_Atomic text; /* the key: address of a static text; NULL: free */
    _Atomic(nvtxStringHandle_t) handle;
} strings[STRINGS_MAX];
static _Atomic uint32_t named_categories; /* bit c: category c has its name */

/* Without a tool NVTX returns no domain. */
static void open_domain(void)
{
    domain = nvtxDomainCreateA("weft");
    atomic_store(&weft_nvtx_on_flag, domain != NULL);
}

void weft_nvtx_init(void)
{
    pthread_once(&init_once, open_domain);
}

/* The handle of a static text; NULL: not registered yet, or the table is full. */
static nvtxStringHandle_t string_find(const char *text)
{
    for (int i = 0; i < STRINGS_MAX; i++) {
        const char *key = atomic_load_explicit(&strings[i].text, memory_order_acquire);
        if (!key && atomic_compare_exchange_strong(&strings[i].text, &key, text)) {
            nvtxStringHandle_t handle = nvtxDomainRegisterStringA(domain, text);
            atomic_store_explicit(&strings[i].handle, handle, memory_order_release);
            return handle;
        }
        if (key == text) return atomic_load_explicit(&strings[i].handle, memory_order_acquire);
    }
    return NULL;
}

uint64_t weft_nvtx_begin(const struct weft_nvtx_range *range)
{
    if (!weft_nvtx_is_on()) return 0;
    nvtxEventAttributes_t event;
    memset(&event, 0, sizeof event);
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event.payload.ullValue = range->bytes;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = range->name;
    nvtxStringHandle_t handle = range->is_static ? string_find(range->name) : NULL;
    if (handle) {
        event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        event.message.registered = handle;
    }
    if (range->category > 0 && range->category < CATEGORIES_MAX) {
        event.category = range->category;
        const uint32_t bit = 1u << range->category;
        if (!(atomic_fetch_or(&named_categories, bit) & bit))
            nvtxDomainNameCategoryA(domain, range->category, range->category_name);
    }
    return nvtxDomainRangeStartEx(domain, &event);
}

void weft_nvtx_end(uint64_t id)
{
    if (id) nvtxDomainRangeEnd(domain, id);
}

#else

void weft_nvtx_init(void) {}
uint64_t weft_nvtx_begin(const struct weft_nvtx_range *range)
{
    (void)range;
    return 0;
}
void weft_nvtx_end(uint64_t id)
{
    (void)id;
}

#endif
