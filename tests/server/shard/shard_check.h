/* shard_check.h - cmocka with the headers that it needs first. */
#ifndef WEFT_TESTS_SERVER_SHARD_SHARD_CHECK_H
#define WEFT_TESTS_SERVER_SHARD_SHARD_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shard_fleet.h"

#endif
