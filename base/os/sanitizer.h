/* sanitizer.h - which sanitizer the file is compiled with: gcc defines macros, clang has features. */
#ifndef WEFT_BASE_OS_SANITIZER_H
#define WEFT_BASE_OS_SANITIZER_H

#if defined(__has_feature)
#define WEFT_HAS_SANITIZER(feature) __has_feature(feature)
#else
#define WEFT_HAS_SANITIZER(feature) 0
#endif

#if defined(__SANITIZE_THREAD__) || WEFT_HAS_SANITIZER(thread_sanitizer)
#define WEFT_THREAD_SANITIZER 1
#else
#define WEFT_THREAD_SANITIZER 0
#endif

#if defined(__SANITIZE_ADDRESS__) || WEFT_HAS_SANITIZER(address_sanitizer)
#define WEFT_ADDRESS_SANITIZER 1
#else
#define WEFT_ADDRESS_SANITIZER 0
#endif

#endif
