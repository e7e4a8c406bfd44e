#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "muonrt/transport.h"

namespace muonrt {

/// Reads a table that the caller supplies. Fields beyond its `struct_size` get their defaults.
/// Errors: INVALID_ARGUMENT if
/// * `table` is null, or no version has this `struct_size`;
/// * a field that this version does not know is set, or a required function is missing;
/// * rank or caller_thread_only is out of range.
muonrt_transport_t read_transport(const muonrt_transport_t* table);

/// A Transport that calls the C functions in a table.
class CallbackTransport final : public Transport {
 public:
  /// Takes over `table.state`, unless the constructor throws. If multiple transports share the
  /// state, the last of them calls `table.destroy`. `table` must be a result of read_transport().
  explicit CallbackTransport(const muonrt_transport_t& table);
  /// @param owns  true if the last of the transports that share the state must destroy it.
  void own_state(bool owns) noexcept;
  ~CallbackTransport() override { retire(); }

  std::string name() const override { return name_; }
  bool caller_thread_only() const override;
  void prepare_reduction(int64_t bytes) override;
  std::optional<Error> published_error() const override;

 protected:
  void do_exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) override;
  void do_allgather(const void* mine, void* all, int64_t bytes) override;
  void do_reduce_max(const float* in, float* out, int64_t n) override;
  void do_reduce_sum(const int64_t* in, int64_t* out, int64_t n) override;
  std::unique_ptr<Transport> do_duplicate() override;
  void publish(const Error& error) noexcept override;

 private:
  struct Shared;  // the table and its state; shared with duplicates if the table cannot duplicate
  explicit CallbackTransport(std::shared_ptr<Shared> shared);
  static constexpr int64_t kMessageCapacity = 1024;
  Error error_from(muonrt_status_t status, char (&message)[kMessageCapacity]) const;
  template <class Function, class... Arguments>
  void call(Function function, Arguments... arguments);

  template <class Function, class T>
  void reduce(Function function, std::vector<T>& both, const T* in, T* out, int64_t n);

  std::shared_ptr<Shared> shared_;
  std::string name_;
  std::vector<muonrt_send_t> sends_;
  std::vector<muonrt_receive_t> receives_;
  std::vector<float> floats_;
  std::vector<int64_t> integers_;
};

}  // namespace muonrt
