#include "cuda/nccl/nccl_api.hpp"

#include "base/error.hpp"
#include "cuda/device/vendor_library.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kOldest = 21900;

VendorLibrary find_nccl(const char* const* names, int count) {
  if (const auto own = VendorLibrary::of_program("ncclGetVersion")) return *own;
  return VendorLibrary::open(
      {names, static_cast<size_t>(count)}, "NCCL",
      "install libnccl.so.2 where the loader finds it, or use a staged communicator");
}

}  // namespace

NcclApi load_nccl(const char* const* names, int count) {
  const VendorLibrary library = find_nccl(names, count);
  const auto resolve = [&](auto& function, const char* name) {
    library.resolve(
        function, name,
        "(it is older than NCCL 2.19, or does not export all functions); install a newer one");
  };
  NcclApi api;
  resolve(api.get_version, "ncclGetVersion");
  resolve(api.get_unique_id, "ncclGetUniqueId");
  resolve(api.init, "ncclCommInitRankConfig");
  resolve(api.split, "ncclCommSplit");
  resolve(api.finalize, "ncclCommFinalize");
  resolve(api.destroy, "ncclCommDestroy");
  resolve(api.abort, "ncclCommAbort");
  resolve(api.async_error, "ncclCommGetAsyncError");
  resolve(api.count, "ncclCommCount");
  resolve(api.user_rank, "ncclCommUserRank");
  resolve(api.device, "ncclCommCuDevice");
  resolve(api.error_string, "ncclGetErrorString");
  resolve(api.last_error, "ncclGetLastError");
  resolve(api.send, "ncclSend");
  resolve(api.receive, "ncclRecv");
  resolve(api.all_reduce, "ncclAllReduce");
  resolve(api.group_start, "ncclGroupStart");
  resolve(api.group_end, "ncclGroupEnd");
  int version = 0;
  const NcclResult result = api.get_version(&version);
  MUONRT_REQUIRE(result == kNcclSuccess && version >= kOldest, Status::kNotSupported,
                 "NCCL reports version ", nccl_version_text(version),
                 ", but 2.19 or later is required; install a newer one");
  return api;
}

const NcclApi& nccl_api() {
  static constexpr const char* kNames[] = {"libnccl.so.2", "libnccl.so"};
  static const NcclApi api = load_nccl(kNames, 2);
  return api;
}

std::string nccl_version_text(int version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace muonrt::cuda
