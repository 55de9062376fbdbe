/* fake_nvtx_tool.c - see fake_nvtx_tool.h. */
#include "fake_nvtx_tool.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES_MAX = 4096, STRINGS_MAX = 256, CATEGORIES_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_nvtx_range ranges[RANGES_MAX];
static char strings[STRINGS_MAX][64], categories[CATEGORIES_MAX][32];
static uint32_t range_count, string_count, domain_count;
static int weft_domain;

uint32_t fake_nvtx_ranges(const struct fake_nvtx_range **ranges_out)
{
    *ranges_out = ranges;
    return range_count;
}

void fake_nvtx_counts(uint32_t *strings_out, uint32_t *domains_out)
{
    *strings_out = string_count;
    *domains_out = domain_count;
}

static nvtxDomainHandle_t domain_create(const char *name)
{
    if (strcmp(name, "weft") != 0) return NULL;
    pthread_mutex_lock(&lock);
    domain_count++;
    pthread_mutex_unlock(&lock);
    return (nvtxDomainHandle_t)(void *)&weft_domain;
}

static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char *text)
{
    pthread_mutex_lock(&lock);
    if (string_count == STRINGS_MAX) abort();
    char *copy = strings[string_count++];
    snprintf(copy, sizeof strings[0], "%s", text);
    pthread_mutex_unlock(&lock);
    return (nvtxStringHandle_t)(void *)copy;
}

static void name_category(nvtxDomainHandle_t domain, uint32_t category, const char *name)
{
    if (category >= CATEGORIES_MAX) abort();
    pthread_mutex_lock(&lock);
    snprintf(categories[category], sizeof categories[0], "%s", name);
    pthread_mutex_unlock(&lock);
}

static nvtxRangeId_t range_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event)
{
    if ((void *)domain != &weft_domain || event->size != NVTX_EVENT_ATTRIB_STRUCT_SIZE) abort();
    pthread_mutex_lock(&lock);
    if (range_count == RANGES_MAX) abort();
    struct fake_nvtx_range *range = &ranges[range_count++];
    range->is_registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
    snprintf(range->name, sizeof range->name, "%s",
             range->is_registered ? (const char *)(const void *)event->message.registered
                                  : event->message.ascii);
    if (event->category < CATEGORIES_MAX)
        snprintf(range->category, sizeof range->category, "%s", categories[event->category]);
    range->payload = event->payload.ullValue;
    range->begins = 1;
    range->begin_thread = (uint64_t)pthread_self();
    const nvtxRangeId_t id = range_count;
    pthread_mutex_unlock(&lock);
    return id;
}

static void range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    pthread_mutex_lock(&lock);
    if (id == 0 || id > range_count) abort();
    ranges[id - 1].ends++;
    ranges[id - 1].end_thread = (uint64_t)pthread_self();
    pthread_mutex_unlock(&lock);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned int size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
    *table[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)range_start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)range_end;
    return 1;
}
