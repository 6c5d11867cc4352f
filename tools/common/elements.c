/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of tensors as text. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/elements.h"

/* The shortest text that reads back as the same number; 5.0 is not 5. */
static void print_shortest(FILE *out, double number, int min_digits, int max_digits, bool is_single)
{
    char text[40];

    for (int digits = min_digits; digits <= max_digits; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        double again = is_single ? (double)strtof(text, NULL) : strtod(text, NULL);
        if (!(again < number) && !(again > number))
            break;
    }
    fprintf(out, strpbrk(text, ".en") ? "%s" : "%s.0", text);
}

void print_float(FILE *out, double number)
{
    print_shortest(out, number, 15, 17, false);
}

/* ---- small floats ---- */

typedef struct small_float {
    berth_dtype dtype;
    int exponent_bits, mantissa_bits, bias;
    enum { HAS_INFINITY, ALL_ONES_IS_NAN, NEGATIVE_ZERO_IS_NAN } specials;
} small_float;

static const small_float small_floats[] = {
    {BERTH_FLOAT16, 5, 10, 15, HAS_INFINITY},
    {BERTH_BFLOAT16, 8, 7, 127, HAS_INFINITY},
    {BERTH_COMPLEX32, 5, 10, 15, HAS_INFINITY},
    {BERTH_BCOMPLEX32, 8, 7, 127, HAS_INFINITY},
    {BERTH_FLOAT8_E5M2, 5, 2, 15, HAS_INFINITY},
    {BERTH_FLOAT8_E4M3FN, 4, 3, 7, ALL_ONES_IS_NAN},
    {BERTH_FLOAT8_E5M2FNUZ, 5, 2, 16, NEGATIVE_ZERO_IS_NAN},
    {BERTH_FLOAT8_E4M3FNUZ, 4, 3, 8, NEGATIVE_ZERO_IS_NAN},
};

/* ldexp, without the library of mathematics: exact, as all results are normal numbers. */
static double times_power_of_two(double number, int exponent)
{
    for (; exponent > 0; exponent--)
        number *= 2;
    for (; exponent < 0; exponent++)
        number /= 2;
    return number;
}

static double small_float_value(const small_float *kind, unsigned bits)
{
    unsigned sign = bits >> (kind->exponent_bits + kind->mantissa_bits);
    int exponent = (int)(bits >> kind->mantissa_bits) & ((1 << kind->exponent_bits) - 1);
    int mantissa = (int)bits & ((1 << kind->mantissa_bits) - 1);
    unsigned top = 1u << (kind->exponent_bits + kind->mantissa_bits), rest = bits & (top - 1);
    double number;

    if (kind->specials == HAS_INFINITY      ? rest > top - (1u << kind->mantissa_bits)
        : kind->specials == ALL_ONES_IS_NAN ? rest == top - 1
                                            : bits == top)
        return (double)NAN;
    if (kind->specials == HAS_INFINITY && exponent == (1 << kind->exponent_bits) - 1)
        number = (double)INFINITY;
    else if (exponent == 0)
        number = times_power_of_two(mantissa, 1 - kind->bias - kind->mantissa_bits);
    else
        number = times_power_of_two(mantissa + (1 << kind->mantissa_bits),
                                    exponent - kind->bias - kind->mantissa_bits);
    return sign ? -number : number;
}

/* ---- numbers ---- */

/* False: the dtype is no real float. */
static bool print_real(FILE *out, berth_dtype dtype, const uint8_t *at)
{
    uint16_t bits = *at;
    float single;
    double number;

    for (size_t i = 0; i < sizeof small_floats / sizeof *small_floats; i++) {
        const small_float *kind = &small_floats[i];
        if (kind->dtype != dtype)
            continue;
        if (kind->exponent_bits + kind->mantissa_bits > 8)
            memcpy(&bits, at, sizeof bits);
        /* So many digits tell any two of them apart. */
        print_shortest(out, small_float_value(kind, bits), 2, 9, true);
        return true;
    }
    if (dtype == BERTH_FLOAT32 || dtype == BERTH_COMPLEX64) {
        memcpy(&single, at, sizeof single);
        print_shortest(out, (double)single, 6, 9, true);
    } else if (dtype == BERTH_FLOAT64 || dtype == BERTH_COMPLEX128) {
        memcpy(&number, at, sizeof number);
        print_float(out, number);
    } else if (dtype == BERTH_FLOAT8_E8M0FNU) {
        print_shortest(out, *at == 255 ? (double)NAN : times_power_of_two(1, *at - 127), 2, 9,
                       true);
    } else
        return false;
    return true;
}

/* False: the dtype is no integer. */
static bool print_integer(FILE *out, berth_dtype dtype, const uint8_t *at)
{
    const char *name = berth_dtype_name(dtype);
    size_t n = berth_dtype_nbytes(dtype);
    uint64_t bits = 0;

    name += name[0] == 'q';
    bool is_unsigned = name[0] == 'u';
    if (n < 1 || n > 8 || strncmp(name + is_unsigned, "int", 3) != 0 || dtype == BERTH_QUINT4X2 ||
        dtype == BERTH_QUINT2X4 || (dtype >= BERTH_INT1 && dtype <= BERTH_UINT7))
        return false;
    for (size_t i = 0; i < n; i++) {
        const uint16_t probe = 1;
        size_t place = *(const uint8_t *)&probe ? i : n - 1 - i;
        bits |= (uint64_t)at[i] << (8 * place);
    }
    if (is_unsigned)
        fprintf(out, "%" PRIu64, bits);
    else
        fprintf(out, "%" PRId64, (int64_t)(bits << (64 - 8 * n)) >> (64 - 8 * n));
    return true;
}

void print_element(FILE *out, berth_dtype dtype, const uint8_t *at)
{
    size_t n = berth_dtype_nbytes(dtype);

    if (dtype == BERTH_BOOL) {
        fputs(*at ? "True" : "False", out);
    } else if (dtype == BERTH_COMPLEX64 || dtype == BERTH_COMPLEX128 || dtype == BERTH_COMPLEX32 ||
               dtype == BERTH_BCOMPLEX32) {
        fputc('(', out);
        (void)print_real(out, dtype, at);
        fputs(", ", out);
        (void)print_real(out, dtype, at + n / 2);
        fputs("j)", out);
    } else if (!print_real(out, dtype, at) && !print_integer(out, dtype, at)) {
        fputs("0x", out);
        for (size_t i = 0; i < n; i++)
            fprintf(out, "%02x", at[i]);
    }
}

/* ---- reading them ---- */

int64_t elements_per_chunk(const berth_tensor *tensor, size_t nbytes)
{
    size_t item = berth_dtype_nbytes(tensor->dtype);
    int64_t numel = berth_tensor_numel(tensor);

    if (tensor->dtype == BERTH_QUINT4X2 || tensor->dtype == BERTH_QUINT2X4)
        return numel ? numel : 1;
    int64_t max = nbytes > item ? (int64_t)(nbytes / item) : 1;
    return numel > 0 && numel < max ? numel : max;
}
