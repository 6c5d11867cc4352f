// SPDX-License-Identifier: BSD-3-Clause
// A device of PyTorch's over Berth's simulated ones: its allocator, and the few operators by which
// torch.save and torch.load make and copy storages. Only a copy of bytes touches them.
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

extern "C" {
uintptr_t stand_in_allocate(int ordinal, size_t nbytes);
void stand_in_free(int ordinal, uintptr_t address);
int stand_in_copy(int ordinal, uintptr_t address, void *bytes, size_t nbytes, bool to_device);
}

namespace
{

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int N_DEVICES = 2;
thread_local int current;

template <int ordinal> void release(void *address)
{
    stand_in_free(ordinal, reinterpret_cast<uintptr_t>(address));
}

struct Allocator : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override
    {
        const int ordinal = current;
        void *address = reinterpret_cast<void *>(stand_in_allocate(ordinal, nbytes));
        TORCH_CHECK_WITH(OutOfMemoryError, address || nbytes == 0, "simulated: out of memory");
        return {address, address, ordinal ? release<1> : release<0>,
                c10::Device(TYPE, static_cast<c10::DeviceIndex>(ordinal))};
    }
    void copy_data(void *, const void *, std::size_t) const override
    {
        TORCH_CHECK(false, "not needed");
    }
} allocator;

struct Guard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override
    {
        return TYPE;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        const c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override
    {
        return {TYPE, static_cast<c10::DeviceIndex>(current)};
    }
    void setDevice(c10::Device device) const override
    {
        if (device.has_index())
            current = device.index();
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        setDevice(device);
    }
    c10::Stream getStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        return stream;
    }
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return N_DEVICES;
    }
};

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format)
{
    const c10::DeviceGuard guard(device.value_or(c10::Device(TYPE, 0)));
    return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor &set(at::Tensor &self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                c10::SymIntArrayRef stride)
{
    auto *tensor = self.unsafeGetTensorImpl();
    tensor->set_storage_keep_dtype(std::move(storage));
    tensor->set_storage_offset(offset.expect_int());
    tensor->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
    return self;
}

at::Tensor &set_all(at::Tensor &self, at::Storage storage)
{
    const auto n = static_cast<int64_t>(storage.nbytes() / self.element_size());
    return set(self, std::move(storage), 0, {n}, {1});
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
    if (to.numel() == 0) // CUDA's does not wait then, either
        return to;
    const bool to_device = to.device().type() == TYPE;
    const at::Tensor &there = to_device ? to : from, &here = to_device ? from : to;
    TORCH_CHECK(here.is_cpu() && from.is_contiguous() && to.is_contiguous(), "bytes only");
    TORCH_CHECK(stand_in_copy(there.device().index(), reinterpret_cast<uintptr_t>(there.data_ptr()),
                              here.data_ptr(), here.nbytes(), to_device) == 0,
                "a copy failed");
    return to;
}

} // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", empty);
    m.impl("set_.source_Storage", set_all);
    m.impl("set_.source_Storage_storage_offset", set);
    m.impl("_copy_from", copy_from);
}

extern "C" void stand_in_select(int ordinal)
{
    current = ordinal;
}
