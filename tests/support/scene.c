/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/expected.h"
#include "tests/support/scene.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

char *folder, *path;
uint8_t *expected;
size_t expected_nbytes;

void begin_scene(const char *name)
{
    folder = test_folder_new();
    path = test_path(folder, name);
}

void begin_model_scene(void)
{
    begin_scene("model.pt");
}

void end_scene(void)
{
    free(expected);
    expected = NULL;
    free(path);
    test_folder_remove(folder);
}

void patch(const char *options)
{
    berth_error error;

    assert_ok(berth_config_patch(options, &error));
}
