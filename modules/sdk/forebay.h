/* The functions of the host that a module of Forebay may call (docs/execute.md).
 *
 * Compile with
 *   clang --target=wasm32 -O2 -ffreestanding -nostdlib -Wl,--no-entry -o NAME.wasm NAME.c
 * and export what calls name with FOREBAY_EXPORT:
 *   FOREBAY_EXPORT(run) { forebay_write("hello", 5); return 0; }
 * The memory is exported by itself. There is no C library; what compilers ask for of one (memcpy, memmove,
 * memset, memcmp) is below. In C++ it is the same, without exceptions. */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A function of the type int32_t(void) that calls can name: 0 when all went well, else a code that the caller gets. */
#define FOREBAY_EXPORT(name) __attribute__((export_name(#name))) int32_t name(void)

#define FOREBAY_IMPORT(name) __attribute__((import_module("forebay"), import_name(#name)))

/* How many inputs there are. */
FOREBAY_IMPORT(inputs) uint32_t forebay_inputs(void);
/* Bytes of an input; -1 when there is no such input. */
FOREBAY_IMPORT(size) int64_t forebay_size(uint32_t input);
/* Copies the input's key, cut to the room; its whole length, or -1. */
FOREBAY_IMPORT(key) int32_t forebay_key(uint32_t input, void *at, size_t room);
/* Copies bytes of an input; how many, fewer than asked for only at its end, or -1 when there is no such input. */
FOREBAY_IMPORT(read) int32_t forebay_read(uint32_t input, uint64_t offset, void *at, size_t length);
/* Copies the arguments, cut to the room; their whole length. `forebay exec` passes words, each followed by a NUL. */
FOREBAY_IMPORT(arguments) uint32_t forebay_arguments(void *at, size_t room);
/* Bytes of output that reach the caller; -1: all do, the output becomes a value. */
FOREBAY_IMPORT(capacity) int64_t forebay_capacity(void);
/* Appends to the output. */
FOREBAY_IMPORT(write) void forebay_write(const void *at, size_t length);
/* Appends bytes of an input to the output; how many, or -1. */
FOREBAY_IMPORT(pass) int64_t forebay_pass(uint32_t input, uint64_t offset, uint64_t length);
/* A line for the caller's eyes. */
FOREBAY_IMPORT(log) void forebay_log(const void *at, size_t length);
/* Ends the call with a code that is not 0 and words for a person. */
FOREBAY_IMPORT(fail) __attribute__((noreturn)) void forebay_fail(int32_t code, const void *at, size_t length);

/* Loops over slices that the host runs at its own speed. */

FOREBAY_IMPORT(crc32c) uint32_t forebay_crc32c(uint32_t seed, const void *at, size_t length);
FOREBAY_IMPORT(crc64nvme) uint64_t forebay_crc64nvme(uint64_t seed, const void *at, size_t length);
/* How often a byte occurs. */
FOREBAY_IMPORT(count) uint32_t forebay_count(const void *at, size_t length, uint32_t byte);
/* Where a sequence of bytes first occurs, or -1. */
FOREBAY_IMPORT(find) int32_t forebay_find(const void *at, size_t length, const void *needle, size_t needle_length);

enum forebay_kind {
    FOREBAY_U8, FOREBAY_I8, FOREBAY_U16, FOREBAY_I16, FOREBAY_U32, FOREBAY_I32, FOREBAY_U64, FOREBAY_I64,
    FOREBAY_F32, FOREBAY_F64
};
enum forebay_is {
    FOREBAY_EQUAL, FOREBAY_NOT_EQUAL, FOREBAY_LESS, FOREBAY_LESS_OR_EQUAL, FOREBAY_GREATER, FOREBAY_GREATER_OR_EQUAL
};

/* The sum of integers, wrapping; of any elements, as a float. */
FOREBAY_IMPORT(sum_int) int64_t forebay_sum_int(uint32_t kind, const void *at, size_t count);
FOREBAY_IMPORT(sum_float) double forebay_sum_float(uint32_t kind, const void *at, size_t count);
/* Sets bit i % 8 of byte i / 8 where element i compares so with the one at `bound`, clears the others; how many are set. */
FOREBAY_IMPORT(compare)
uint32_t forebay_compare(uint32_t kind, uint32_t is, const void *at, size_t count, const void *bound, void *bits);
/* Copies the elements of `width` bytes whose bit is set; how many. */
FOREBAY_IMPORT(select)
uint32_t forebay_select(uint32_t width, const void *at, size_t count, const void *bits, void *to);

/* What compilers call by themselves. Bulk memory makes instructions of all but memcmp where the target has it
 * (-mbulk-memory). */

__attribute__((weak)) void *memcpy(void *__restrict to, const void *__restrict from, size_t length)
{
    unsigned char *into = (unsigned char *)to;
    const unsigned char *out_of = (const unsigned char *)from;
    while (length--)
        *into++ = *out_of++;
    return to;
}

__attribute__((weak)) void *memmove(void *to, const void *from, size_t length)
{
    unsigned char *into = (unsigned char *)to;
    const unsigned char *out_of = (const unsigned char *)from;
    if (into < out_of) {
        while (length--)
            *into++ = *out_of++;
    } else {
        while (length--)
            into[length] = out_of[length];
    }
    return to;
}

__attribute__((weak)) int memcmp(const void *left, const void *right, size_t length)
{
    const unsigned char *one = (const unsigned char *)left;
    const unsigned char *other = (const unsigned char *)right;
    for (; length--; one++, other++)
        if (*one != *other)
            return *one - *other;
    return 0;
}

__attribute__((weak)) void *memset(void *to, int byte, size_t length)
{
    unsigned char *into = (unsigned char *)to;
    while (length--)
        *into++ = (unsigned char)byte;
    return to;
}

#ifdef __cplusplus
}
#endif

#endif
