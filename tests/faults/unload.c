/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X12: the shared library is unloaded while a thread has a patch of it, which is freed when the
 * thread ends; then it is loaded again.
 */
#include <berth/config.h>
#include <dlfcn.h>
#include <semaphore.h>

#include "tests/support/faults/save_scene.h"

static sem_t patched, unloaded;
static char *library_path;

static void find_library(void)
{
    char program[4000];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 100);

    begin_faults();
    cr_assert_gt(n, 0);
    program[n] = '\0';
    char *at = strstr(program, "/tests/faults/");
    cr_assert(at, "%s", program);
    strcpy(at, "/libberth.so.0");
    library_path = strdup(program);
    if (access(library_path, R_OK) != 0)
        cr_skip_test("no shared library in this variant");
}

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);

    cr_assert(found, "%s: %s", name, dlerror());
    return found;
}

static void *load(void)
{
    void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);

    cr_assert(library, "%s", dlerror());
    return library;
}

static void *patch_and_stay(void *library)
{
    int (*config_patch)(const char *, berth_error *);
    *(void **)&config_patch = find(library, "berth_config_patch");
    bool is_patched = config_patch("io.threads=1", NULL) == 0;
    (void)sem_post(&patched);
    (void)sem_wait(&unloaded);
    return is_patched ? library : NULL;
}

static void verify_with(void *library)
{
    int (*verify)(const berth_source *, const berth_params *, berth_record_function, void *,
                  berth_verdict *, berth_error *);
    const berth_source source = berth_from_path(path);
    berth_error error;

    *(void **)&verify = find(library, "berth_verify");
    cr_assert_eq(verify(&source, NULL, NULL, NULL, NULL, &error), 0, "%s", error.message);
}

static void *patch_twice(void *unused)
{
    cr_assert_eq(berth_config_patch("io.threads=1", NULL), 0);
    cr_assert_eq(berth_config_patch("io.threads=2", NULL), 0);
    return unused;
}

/* What is called then. */
Test(patches, end_with_their_thread)
{
    pthread_t thread;

    test_memory_watch();
    cr_assert_eq(pthread_create(&thread, NULL, patch_twice, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(test_memory_seen().n_allocations, 2);
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

TestSuite(unload, .init = find_library, .fini = end_faults);

/* X12 */
Test(unload, is_harmless_while_a_thread_has_a_patch)
{
    pthread_t thread;
    void *result;

    (void)sem_init(&patched, 0, 0);
    (void)sem_init(&unloaded, 0, 0);
    cr_assert_eq(save_values(path, NULL), 0);
    for (int i = 0; i < 3; i++) {
        void *library = load();
        cr_assert_eq(pthread_create(&thread, NULL, patch_and_stay, library), 0);
        (void)sem_wait(&patched);
        verify_with(library);
        cr_assert_eq(dlclose(library), 0);
        (void)sem_post(&unloaded);
        cr_assert_eq(pthread_join(thread, &result), 0);
        cr_assert_eq(result, library);
        library = load();
        verify_with(library);
        cr_assert_eq(dlclose(library), 0);
    }
    free(library_path);
}
