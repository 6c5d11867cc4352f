/* SPDX-License-Identifier: BSD-3-Clause */
/* What the file of a scene must become. */
#ifndef TESTS_SUPPORT_EXPECTED_H
#define TESTS_SUPPORT_EXPECTED_H

#include "tests/support/scene.h"

extern uint8_t *expected; /* malloc's; end_scene frees it */
extern size_t expected_nbytes;

#endif
