/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A value as a text, so that a test compares all of it with one line:
 *
 *     [1, 0.5f, 'a', b'\xff', {'k': None}]      &1 [*1]: a list that holds itself
 *     float32[2, 3]<float32 '0' 24>             a tensor, and its storage: class, key, bytes
 *     int8[4](2)@1<untyped of int8 '1' 9 cuda:1> grad
 *                                               with stride, offset, location: what is not usual
 *     Parameter(…, grad)  Subclass(…, state, class)  COO([9], indices, values)  Nested(…)
 *     <os system>('rm')+{'a': 1}                a call, and its state
 */
#ifndef TESTS_SUPPORT_VALUE_TEXT_H
#define TESTS_SUPPORT_VALUE_TEXT_H

#include "format/values/value.h"

void expect_value(const berth_value *root, const char *text);

#endif
