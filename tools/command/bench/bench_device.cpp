#include "command/bench/bench_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kStagingBytes = int64_t{64} << 20;

unsigned char* at(void* memory, int64_t offset) {
  return static_cast<unsigned char*>(memory) + offset;
}
const unsigned char* at(const void* memory, int64_t offset) {
  return static_cast<const unsigned char*>(memory) + offset;
}

}  // namespace

int DeviceReport::run(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return finish("out of memory; use smaller shapes");
  } catch (const Error& error) {
    if (error.status() == Status::kTimeout) give_up(error.message());
    return finish(error.message());
  }
  return finish(rows() > 0 ? ""
                           : "nothing was measured, because portable loops skip large products; "
                             "use smaller shapes or other providers");
}

void DeviceReport::give_up(const std::string& why) {
  finish(why);
  std::_Exit(1);
}

Workbench::Workbench(std::unique_ptr<Device> made)
    : device_(std::move(made)),
      stream_(device_->create_stream(StreamKind::kCompute)),
      done_(device_->create_event()) {}

Workbench::Workbench(const Provider& provider, DeviceReport& report) : Workbench(provider.make()) {
  name_ = provider.name;
  report_ = &report;
  if (report.device.empty()) report.device = device_->describe();
}

void Workbench::finish() {
  const double seconds = (report_ ? report_->arguments : DeviceArguments()).deadline;
  device_->record(*done_, *stream_);
  try {
    device_->synchronize(*done_, Deadline::in_ms(static_cast<int64_t>(seconds * 1e3)));
  } catch (const Error& error) {
    if (error.status() != Status::kTimeout || !report_) throw;
    report_->give_up(
        fmt::format("{}: work on {} did not end within {} s", name_, device_->describe(), seconds));
  }
  if (const auto error = device_->error()) throw Error(*error);
}

void* Workbench::take(int64_t bytes) {
  memory_.emplace_back(*device_, bytes);
  return memory_.back().data();
}

void Workbench::by_blocks(int64_t bytes,
                          const std::function<void(int64_t offset, int64_t size)>& move) {
  const int64_t most = std::min(bytes, kStagingBytes);
  if (staging_.bytes() < most) staging_ = Buffer::shared(*device_, most);
  for (int64_t offset = 0; offset < bytes; offset += most)
    move(offset, std::min(most, bytes - offset));
}

void Workbench::put(void* to, const void* from, int64_t bytes) {
  by_blocks(bytes, [&](int64_t offset, int64_t size) {
    std::memcpy(staging_.data(), at(from, offset), static_cast<size_t>(size));
    ops().copy(*stream_, at(to, offset), staging_.data(), size);
    finish();
  });
}

void Workbench::get(void* to, const void* from, int64_t bytes) {
  read(from, bytes, [&](const void* block, int64_t offset, int64_t size) {
    std::memcpy(at(to, offset), block, static_cast<size_t>(size));
  });
}

void Workbench::read(
    const void* from, int64_t bytes,
    const std::function<void(const void* block, int64_t offset, int64_t size)>& visit) {
  by_blocks(bytes, [&](int64_t offset, int64_t size) {
    ops().copy(*stream_, staging_.data(), at(from, offset), size);
    finish();
    visit(staging_.data(), offset, size);
  });
}

void Workbench::put_values(void* to, DType dtype, int64_t count,
                           const std::function<float(int64_t index)>& value) {
  const int64_t one = size_of(dtype);
  by_blocks(count * one, [&](int64_t offset, int64_t size) {
    in_parallel(size / one, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        bench_store(staging_.data(), dtype, i, value(offset / one + i));
    });
    ops().copy(*stream_, at(to, offset), staging_.data(), size);
    finish();
  });
}

int64_t Workbench::not_finite(const MatrixBatch& m) {
  const int64_t one = size_of(m.dtype);
  std::atomic<int64_t> out = 0;
  read(m.data, ((m.count - 1) * m.stride + m.rows * m.ld) * one,
       [&](const void* block, int64_t offset, int64_t bytes) {
         const int64_t first = offset / one;  // index of the block's first element
         in_parallel(bytes / one, [&](int64_t begin, int64_t end) {
           int64_t bad = 0;
           for (int64_t i = begin; i < end; ++i) {
             if (std::isfinite(bench_load(block, m.dtype, i))) continue;
             const int64_t inside = (first + i) % m.stride;  // other bytes are padding
             bad += inside < m.rows * m.ld && inside % m.ld < m.cols;
           }
           out += bad;
         });
       });
  return out;
}

double Workbench::time_once(const std::function<void()>& enqueue) {
  const Buffer clock = Buffer::shared(*device_, 2 * sizeof(int64_t));
  device_->timestamp(*stream_, clock.as<int64_t>());
  enqueue();
  device_->timestamp(*stream_, clock.as<int64_t>() + 1);
  finish();
  return static_cast<double>(clock.as<int64_t>()[1] - clock.as<int64_t>()[0]) * 1e-6;
}

}  // namespace muonrt::tool
