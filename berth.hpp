/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth.hpp - Berth for C++17: handles that free themselves, and errors as exceptions.
 *
 * It wraps what most programs need. Each handle converts to the pointer of C, so that all
 * functions of the headers can be called with it; berth::check throws what they return.
 */
#ifndef BERTH_HPP
#define BERTH_HPP

#include <berth.h>
#include <berth/config.h>
#include <berth/device.h>
#include <berth/joint.h>
#include <berth/more.h>
#include <berth/prefetch.h>
#include <berth/rows.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace berth
{

/* What went wrong; code is one of berth_status. */
class error : public std::runtime_error
{
  public:
    explicit error(const berth_error &from) : std::runtime_error(from.message), code(from.code)
    {
    }
    error(berth_status status, const std::string &text) : std::runtime_error(text), code(status)
    {
    }
    berth_status code;
};

/* Calls a function of berth.h with a berth_error as its last argument; throws if it fails. */
template <typename Function, typename... Arguments>
auto check(Function function, Arguments... arguments)
{
    berth_error failure;
    auto result = function(arguments..., &failure);
    if constexpr (std::is_pointer_v<decltype(result)>) {
        if (!result)
            throw error(failure);
    } else if (result < 0) {
        throw error(failure);
    }
    return result;
}

/* The dtype of a C++ type. */
template <typename Element> inline constexpr berth_dtype dtype_of = BERTH_DTYPE_NONE;
template <> inline constexpr berth_dtype dtype_of<float> = BERTH_FLOAT32;
template <> inline constexpr berth_dtype dtype_of<double> = BERTH_FLOAT64;
template <> inline constexpr berth_dtype dtype_of<std::int32_t> = BERTH_INT32;
template <> inline constexpr berth_dtype dtype_of<std::int64_t> = BERTH_INT64;
template <> inline constexpr berth_dtype dtype_of<std::uint8_t> = BERTH_UINT8;
template <> inline constexpr berth_dtype dtype_of<bool> = BERTH_BOOL;

/* Elements of a tensor, in row-major order; they live as long as their checkpoint. */
template <typename Element> struct span {
    const Element *data;
    std::size_t count;
};

/* Values to be saved. What the tensors were made from must live as long. */
class tree
{
  public:
    operator berth_tree *() const
    {
        return handle.get();
    }

    template <typename Element>
    berth_value *tensor(const std::vector<Element> &elements,
                        const std::vector<std::int64_t> &shape)
    {
        berth_tensor made = {};
        made.dtype = dtype_of<Element>;
        made.rank = static_cast<std::int32_t>(shape.size());
        made.shape = shape.data();
        made.data = elements.data();
        if (berth_tensor_numel(&made) != static_cast<std::int64_t>(elements.size()))
            throw error(BERTH_E_ARGUMENT, "the shape has another number of elements");
        return berth_make_tensor(handle.get(), &made);
    }

  private:
    std::unique_ptr<berth_tree, void (*)(berth_tree *)> handle{check(berth_tree_new),
                                                               berth_tree_free};
};

/* Saves atomically; params as in berth.h. */
inline void save(const std::string &path, const berth_value *value,
                 const berth_params *params = nullptr)
{
    check(berth_save, path.c_str(), value, params);
}

/* An open checkpoint. */
class checkpoint
{
  public:
    explicit checkpoint(const std::string &path, const berth_params *params = nullptr)
    {
        berth_checkpoint *opened = nullptr;
        check(berth_open, path.c_str(), params, &opened);
        handle.reset(opened);
    }
    operator berth_checkpoint *() const
    {
        return handle.get();
    }

    /* The elements of a contiguous tensor of this type and shape (-1: any); throws otherwise. */
    template <typename Element>
    span<Element> expect(const std::string &name, const std::vector<std::int64_t> &shape)
    {
        const void *elements = check(berth_expect, handle.get(), name.c_str(), dtype_of<Element>,
                                     static_cast<std::int32_t>(shape.size()), shape.data());
        return {static_cast<const Element *>(elements),
                static_cast<std::size_t>(
                    berth_tensor_numel(berth_find_tensor(handle.get(), name.c_str(), NULL)))};
    }

  private:
    std::unique_ptr<berth_checkpoint, void (*)(berth_checkpoint *)> handle{nullptr, berth_close};
};

} // namespace berth

#endif
