/* check.h - cmocka with the headers that it requires. Include it last. */
#ifndef WEFT_TESTS_LIB_CHECK_H
#define WEFT_TESTS_LIB_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
