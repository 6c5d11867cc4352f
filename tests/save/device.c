/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves from devices, on simulated ones: the same file as from main memory, whatever goes late. */
#include <berth/config.h>
#include <berth/device.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "format/values/value.h"
#include "io/device/staging_buffers.h"
#include "tests/support/save/device_storages.h"
#include "tests/support/scene.h"

static device_scene scene;
static berth_error error;

static void set_up(void)
{
    begin_scene("archive.pt");
    bth_simulated_set(NULL);
    scene_begin(&scene);
}

TestSuite(save_device, .init = set_up, .fini = end_scene);

/* At the end of each test, not behind it: what fails there fails no test. */
#define DEVICE_TEST(name)                                                                          \
    static void name(void);                                                                        \
    Test(save_device, name)                                                                        \
    {                                                                                              \
        name();                                                                                    \
        scene_end(&scene);                                                                         \
        bth_staging_free_kept();                                                                   \
        const bth_simulated_live live = bth_simulated_seen();                                      \
        cr_expect_eq(live.memory_nbytes, 0);                                                       \
        cr_expect_eq(live.pinned_nbytes, 0);                                                       \
        cr_expect_eq(live.n_streams + live.n_events, 0);                                           \
        bth_simulated_set(NULL);                                                                   \
    }                                                                                              \
    static void name(void)

static void check_bytes(const void *bytes, size_t nbytes, const char *what)
{
    const uint8_t *at = bytes;

    cr_assert_eq(nbytes, scene.expected_nbytes, "%s", what);
    for (size_t i = 0; i < nbytes; i++)
        cr_assert_eq(at[i], scene.expected[i], "byte %zu of %zu is 0x%02x with %s", i, nbytes,
                     at[i], what);
}

static void check_file(const char *what)
{
    size_t nbytes;
    uint8_t *file = test_read_file(path, &nbytes);

    check_bytes(file, nbytes, what);
    free(file);
}

static void check_save(const char *options)
{
    patch(options);
    scene_expect(&scene);
    cr_assert_eq(berth_save(path, scene.state, NULL, &error), 0, "%s", error.message);
    check_file(options);
    berth_config_unpatch(NULL);
}

static const char *const many_options[] = {
    "io.threads=1",
    "io.threads=4",
    "debug=on",
    "io.threads=4 io.chunk_nbytes=1000",
    "io.threads=3 io.chunk_nbytes=4096 save.method=direct",
    "io.threads=1 io.chunk_nbytes=65536 save.method=direct",
    "io.threads=4 io.chunk_nbytes=65536 save.method=direct save.storage_alignment=4096",
    "io.threads=4 io.chunk_nbytes=1001 save.byteorder=big",
    "io.threads=4 io.chunk_nbytes=1000 save.byteorder=big save.storage_alignment=1",
    "save.byteorder=big save.method=direct",
    "save.compute_crc32=off io.chunk_nbytes=3000",
    "save.method=buffered save.durability=none",
};
#define N_OPTIONS (sizeof many_options / sizeof *many_options)

DEVICE_TEST(a_file_is_the_same_as_from_main_memory)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        check_save(many_options[i]);
}

DEVICE_TEST(late_copies_in_any_order_are_waited_for)
{
    const bth_simulated_machine late = {.n_devices = 2,
                                        .memory_nbytes = UINT64_MAX,
                                        .pinned_nbytes = UINT64_MAX,
                                        .latest_nanoseconds = 300000,
                                        .seed = 7};

    bth_simulated_set(&late);
    check_save("io.threads=4 io.chunk_nbytes=16384");
    check_save("io.threads=1 io.chunk_nbytes=16384 save.method=direct");
    check_save("io.threads=4 io.chunk_nbytes=8192 save.method=direct");
    bth_simulated_set(NULL);
}

static int append(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    uint8_t *bytes = context;

    memcpy(bytes + offset, buffer, nbytes);
    return 0;
}

/* In order: one thread, whose staging buffers are filled ahead. */
static void check_ordered(const char *options)
{
    const berth_sink sink = {
        .write = append, .context = calloc(1, scene.expected_nbytes), .in_order = true};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    patch(options);
    cr_assert_eq(berth_save_to(TO_SINK(&sink), OF_VALUE(scene.state), NAMED("archive"), &error), 0,
                 "%s", error.message);
    check_bytes(sink.context, scene.expected_nbytes, options);
    cr_assert_eq(berth_save_to(TO_FD(fd), OF_VALUE(scene.state), NAMED("archive"), &error), 0, "%s",
                 error.message);
    check_file(options);
    berth_config_unpatch(NULL);
    close(fd);
    free(sink.context);
}

DEVICE_TEST(memory_descriptors_and_sinks_get_the_same_bytes)
{
    void *bytes;
    size_t nbytes;

    check_ordered("io.chunk_nbytes=40000");
    check_ordered("io.chunk_nbytes=40000 device.staging_buffers=1");
    check_ordered("io.chunk_nbytes=999999 io.threads=4");

    cr_assert_eq(
        berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(scene.state), NAMED("archive"), &error),
        0, "%s", error.message);
    check_bytes(bytes, nbytes, "memory");
    berth_free(bytes);
}

DEVICE_TEST(an_event_is_waited_for_before_the_bytes_are_read)
{
    static const float early[1000];
    void *pinned;
    const int64_t n = 1000;
    bth_device_stream kernels;
    bth_device_event ready;
    uintptr_t address;
    berth_job *job;
    uint8_t *file;
    size_t nbytes;

    cr_assert_eq(bth_pinned_allocate(scene.device[0], sizeof early, &pinned, &error), 0);
    float *late = pinned;
    for (size_t i = 0; i < 1000; i++)
        late[i] = (float)i;
    cr_assert_eq(bth_device_allocate_memory(scene.device[0], sizeof early, &address, &error), 0);
    scene_put(scene.device[0], address, early, sizeof early);
    cr_assert_eq(bth_device_stream_open(scene.device[0], &kernels, &error), 0);
    cr_assert_eq(bth_device_event_open(scene.device[0], &ready, &error), 0);
    bth_simulated_hold(&kernels, true); /* the kernels that make the bytes */
    cr_assert_eq(bth_device_begin_copy_to_device(&kernels, address, late, sizeof early, &error), 0);
    cr_assert_eq(bth_device_event_record(&ready, &kernels, &error), 0);
    berth_storage *storage = berth_device_storage_new(scene.tree, BERTH_FLOAT32, address,
                                                      sizeof early, "simulated", ready.native);
    berth_value *tensor = berth_make_tensor(
        scene.tree,
        &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1, .shape = &n, .storage = storage});
    cr_assert_eq(berth_save_begin(TO_PATH(path), OF_VALUE(tensor), 0, NULL, &job, &error), 0, "%s",
                 error.message);
    cr_expect_not(JOB_IS(job, BERTH_JOB_STAGED));
    usleep(20000);
    bth_simulated_hold(&kernels, false);
    cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
    berth_job_free(job);
    file = test_read_file(path, &nbytes);
    cr_expect_not_null(memmem(file, nbytes, late, sizeof early), "the bytes behind the event");
    cr_expect_not_null(memmem(file, nbytes, "simulated:0", 11), "\"simulated\" is the first one");
    bth_device_event_close(&ready);
    bth_device_stream_close(&kernels);
    bth_device_release_memory(scene.device[0], address);
    bth_pinned_release(scene.device[0], pinned);
    free(file);
}

DEVICE_TEST(views_are_compacted_on_the_device)
{
    const int64_t n = 100;
    const berth_tensor *whole = berth_as_tensor(berth_dict_get(scene.state, "part1"));
    berth_tensor view = *whole;
    void *bytes[2];
    size_t nbytes[2];

    view.shape = &n;
    view.stride = NULL;
    view.storage_offset = 60001;
    berth_tree *tree = berth_tree_new(&error), *again = berth_tree_new(&error);
    berth_value *compact =
        berth_value_copy(tree, berth_make_tensor(scene.tree, &view), BERTH_COPY_COMPACT);
    /* A view of what is one already. */
    berth_value *twice = berth_value_copy(again, compact, BERTH_COPY_COMPACT);
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes[0], &nbytes[0]), OF_VALUE(compact), NULL, &error),
                 0, "%s", error.message);
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes[1], &nbytes[1]), OF_VALUE(twice), NULL, &error), 0,
                 "%s", error.message);
    cr_assert_lt(nbytes[0], 4096);
    cr_expect_not_null(memmem(bytes[0], nbytes[0], scene.host[1] + 60001, 400));
    cr_expect_eq(nbytes[1], nbytes[0]);
    cr_expect_eq(memcmp(bytes[0], bytes[1], nbytes[0]), 0);
    berth_free(bytes[0]);
    berth_free(bytes[1]);
    berth_tree_free(again);
    berth_tree_free(tree);
}

static void save_records(const berth_storage *storage, void **bytes, size_t *nbytes)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0",
                                         .nbytes = scene_nbytes(0),
                                         .data = storage ? NULL : scene.host[0],
                                         .storage = storage}};

    cr_assert_eq(berth_save_to(TO_MEMORY(bytes, nbytes), OF_RECORDS(records, 2, 0), NULL, &error),
                 0, "%s", error.message);
}

DEVICE_TEST(a_record_can_be_a_storage_of_a_device)
{
    void *bytes[2];
    size_t nbytes[2];

    save_records(NULL, &bytes[0], &nbytes[0]);
    save_records(berth_device_storage_new(scene.tree, BERTH_DTYPE_NONE, scene.address[0],
                                          scene_nbytes(0), "simulated:0", NULL),
                 &bytes[1], &nbytes[1]);
    cr_expect_eq(nbytes[1], nbytes[0]);
    cr_expect_eq(memcmp(bytes[0], bytes[1], nbytes[0]), 0);
    berth_free(bytes[0]);
    berth_free(bytes[1]);
}

/* ---- jobs ---- */

DEVICE_TEST(a_snapshot_is_of_the_devices_too)
{
    berth_job *job;
    static const char *const options[] = {"io.threads=4 io.chunk_nbytes=4096",
                                          "save.byteorder=big io.chunk_nbytes=1001"};

    for (size_t i = 0; i < 2; i++) {
        patch(options[i]);
        scene_expect(&scene);
        cr_assert_eq(berth_save_begin(TO_PATH(path), OF_VALUE(scene.state), BERTH_SAVE_SNAPSHOT,
                                      NULL, &job, &error),
                     0, "%s", error.message);
        cr_assert(JOB_IS(job, BERTH_JOB_STAGED));
        if (i == 1)
            scene_release(&scene);
        cr_assert_eq(berth_job_wait(job, BERTH_JOB_DONE, -1, &error), 0, "%s", error.message);
        berth_job_free(job);
        check_file(options[i]);
        berth_config_unpatch(NULL);
    }
}

/* ---- what is refused ---- */

static void check_refused(uintptr_t address, uint64_t nbytes, const char *location, int code,
                          const char *message)
{
    berth_tree *tree = berth_tree_new(NULL);

    cr_expect_null(berth_device_storage_new(tree, BERTH_FLOAT32, address, nbytes, location, NULL));
    cr_expect_eq(berth_tree_error(tree, &error), code, "%s", error.message);
    cr_expect_str_eq(error.message, message);
    /* And so is a save of what such a tree makes. */
    cr_expect_eq(berth_save(path, berth_make_none(tree), NULL, &error), code);
    cr_expect_eq(test_folder_count(folder), 0);
    berth_tree_free(tree);
}

DEVICE_TEST(what_is_not_the_devices_is_refused_when_it_is_told)
{
    char message[200];

    check_refused(0, 4, "simulated:7", BERTH_E_DEVICE,
                  "simulated:7: there is no such device, the driver has 2");
    check_refused(0, 4, "cpu", BERTH_E_ARGUMENT,
                  "cpu: not the name of a device; devices are cuda:0, cuda:1 and so on");
    check_refused(0, 4, NULL, BERTH_E_ARGUMENT, "a storage on a device: the device's name is NULL");
    snprintf(message, sizeof message,
             "simulated:0: 4 bytes at 0x%zx are not this device's memory, "
             "or not any more",
             (size_t)(uintptr_t)scene.host[1]);
    check_refused((uintptr_t)scene.host[1], 4, "simulated:0", BERTH_E_ARGUMENT, message);
    snprintf(message, sizeof message, "simulated:0: 20 bytes at 0x%zx are memory of simulated:1",
             (size_t)scene.address[6]);
    check_refused(scene.address[6], 20, "simulated:0", BERTH_E_ARGUMENT, message);
    check_refused(scene.address[1], 6, "simulated:0", BERTH_E_ARGUMENT,
                  "a storage of 6 bytes does not hold a whole number of float32");
    cr_expect_null(berth_device_storage_new(NULL, BERTH_FLOAT32, 0, 0, "simulated", NULL));
}

/* X18 */
DEVICE_TEST(memory_in_a_context_that_died_fails_the_save_before_anything_is_written)
{
    static const char *const told[] = {
        "its context died: context is destroyed (SIMULATED_CONTEXT_IS_DESTROYED)",
        "its context died and was opened again: all data in it is lost"};
    char message[300];
    uint8_t bytes[4];
    bth_device_handle *again;
    const berth_storage *storage = berth_as_tensor(berth_dict_get(scene.state, "part1"))->storage;

    bth_simulated_reset(0);
    scene.address[0] = scene.address[1] = 0; /* nothing to be released */
    for (int round = 0; round < 2; round++) {
        snprintf(message, sizeof message, "%s: data/0: simulated:0: %s", path, told[round]);
        cr_expect_eq(berth_save(path, scene.state, NULL, &error), BERTH_E_DEVICE);
        cr_expect_str_eq(error.message, message);
        cr_expect_eq(test_folder_count(folder), 0);
        bth_error_clear(&error);
        cr_expect_eq(storage->read(storage, bytes, 4, 0, &error), BERTH_E_DEVICE);
        cr_expect_not_null(strstr(error.message, told[round]), "%s", error.message);
        bth_error_clear(&error);
        cr_assert_eq(bth_device_open("simulated:0", &again, &error), 0, "%s", error.message);
    }
}

DEVICE_TEST(memory_that_was_freed_fails_the_save_before_anything_is_written)
{
    char message[300];

    test_write_file(path, "old", 3);
    snprintf(message, sizeof message,
             "%s: data/1: simulated:0: 280000 bytes at 0x%zx are not this device's memory, or not "
             "any more",
             path, (size_t)scene.address[1]);
    bth_device_release_memory(scene.device[1], scene.address[1]);
    scene.address[1] = 0;
    cr_expect_eq(berth_save(path, scene.state, NULL, &error), BERTH_E_ARGUMENT);
    cr_expect_str_eq(error.message, message);
    cr_expect_str_eq(error.record, "data/1");
    cr_expect_eq(test_folder_count(folder), 1);
    size_t nbytes;
    uint8_t *file = test_read_file(path, &nbytes);
    cr_expect_str_eq((char *)file, "old");
    free(file);
}

DEVICE_TEST(as_safetensors_only_what_is_contiguous_there)
{
    static const int64_t shape[] = {2, 2}, across[] = {1, 2};
    const berth_tensor *whole = berth_as_tensor(berth_dict_get(scene.state, "part1"));
    berth_tensor turned = {.dtype = whole->dtype,
                           .rank = 2,
                           .shape = shape,
                           .stride = across,
                           .storage = whole->storage};
    const berth_content content =
        berth_of_safetensors(berth_make_tensor(scene.tree, &turned), NULL, 0);

    int status = berth_save_to(TO_PATH(path), &content, NULL, &error);
    if (status == BERTH_E_UNAVAILABLE) /* of a build without jansson */
        return;
    cr_expect_eq(status, BERTH_E_UNSUPPORTED);
    cr_expect(strstr(error.message, "it is not contiguous in the memory of the device"), "%s",
              error.message);
}
