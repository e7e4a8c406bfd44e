#include <algorithm>
#include <cstring>

#include "block.hpp"
#include "ptx/order.hpp"
#include "ptx/program.hpp"
#include "ptx/shared.hpp"
#include "ptx/traffic.hpp"

// Loads, stores and atomics. Source: PTX ISA 9.0, sections 9.7.9 and 9.7.13.

namespace emulator::ptx {

namespace {

void require_aligned(uint64_t address, size_t bytes) {
  if (address % bytes != 0) throw std::logic_error("an address that is not aligned");
}

constexpr uint64_t kFirstPage = 4096;

/// Memory of the device, of arguments or of a thread. Its addresses are addresses of the host.
struct HostSpace {
  static unsigned char* at(const Thread&, uint64_t address, size_t bytes) {
    require_aligned(address, bytes);
    if (address < kFirstPage) throw std::logic_error("an address near zero");
    return reinterpret_cast<unsigned char*>(address);
  }
  static unsigned char* written_at(const Thread& t, uint64_t address, size_t bytes) {
    return at(t, address, bytes);
  }
};
/// Memory of the device. A thread may not write it while previous kernels may still access it. The
/// thread may read data that was written before these kernels, such as job lists.
struct Global {
  static unsigned char* at(const Thread& t, uint64_t address, size_t bytes) {
    return reached(t, address, bytes, order::Access::kRead);
  }
  static unsigned char* written_at(const Thread& t, uint64_t address, size_t bytes) {
    require_predecessors();
    return reached(t, address, bytes, order::Access::kWrite);
  }
  static unsigned char* changed_at(const Thread& t, uint64_t address, size_t bytes) {
    require_predecessors();
    return reached(t, address, bytes, order::Access::kAtomic);
  }

 private:
  static unsigned char* reached(const Thread& t, uint64_t address, size_t bytes,
                                order::Access access) {
    unsigned char* const memory = HostSpace::at(t, address, bytes);
    order::device_access(address, bytes, access);
    const bool reads = access == order::Access::kRead;
    traffic::note(t, reads ? traffic::Kind::kLoad : traffic::Kind::kStore, address, bytes);
    return memory;
  }
};
struct Shared {
  template <order::Access kAccess>
  static unsigned char* reached(const Thread& t, uint64_t address, size_t bytes) {
    const SharedRange place = shared_range(address, bytes);
    order::access(place.block, place.offset, bytes, kAccess);
    traffic::note(t, traffic::Kind::kShared, place.offset, bytes);
    return place.memory;
  }
  static unsigned char* at(const Thread& t, uint64_t address, size_t bytes) {
    return reached<order::Access::kRead>(t, address, bytes);
  }
  static unsigned char* written_at(const Thread& t, uint64_t address, size_t bytes) {
    return reached<order::Access::kWrite>(t, address, bytes);
  }
  static unsigned char* changed_at(const Thread& t, uint64_t address, size_t bytes) {
    return reached<order::Access::kAtomic>(t, address, bytes);
  }
};

template <class T, int kCount, class Space>
void load(Thread& t, const Instruction& i) {
  T values[kCount];
  std::memcpy(values, Space::at(t, t.address(i.at[kCount]), sizeof values), sizeof values);
  for (int k = 0; k < kCount; ++k) t.set<T>(i.at[k], values[k]);
}
template <class T, int kCount, class Space>
void store(Thread& t, const Instruction& i) {
  T values[kCount];
  for (int k = 0; k < kCount; ++k) values[k] = t.get<T>(i.at[k + 1]);
  std::memcpy(Space::written_at(t, t.address(i.at[0]), sizeof values), values, sizeof values);
}

// Threads take turns, so reads and writes in one turn are atomic.
template <class T>
T added(T old, T value) {
  return static_cast<T>(old + value);
}
template <class T>
T exchanged(T, T value) {
  return value;
}
template <class T>
T lesser(T old, T value) {
  return std::min(old, value);
}
template <class T>
T larger(T old, T value) {
  return std::max(old, value);
}
template <class T, class Space, T (*kOf)(T, T)>
void atomic(Thread& t, const Instruction& i) {
  unsigned char* const memory = Space::changed_at(t, t.address(i.at[1]), sizeof(T));
  T old;
  std::memcpy(&old, memory, sizeof old);
  const T made = kOf(old, t.get<T>(i.at[2]));
  std::memcpy(memory, &made, sizeof made);
  t.set<T>(i.at[0], old);
}

template <class T, class Space>
void add_of(Table& table, const std::string& space, const std::string& type) {
  table["ld" + space + type] = load<T, 1, Space>;
  table["st" + space + type] = store<T, 1, Space>;
  table["ld" + space + ".v2" + type] = load<T, 2, Space>;
  table["st" + space + ".v2" + type] = store<T, 2, Space>;
  if constexpr (sizeof(T) <= 4) {
    table["ld" + space + ".v4" + type] = load<T, 4, Space>;
    table["st" + space + ".v4" + type] = store<T, 4, Space>;
  }
}
template <class Space>
void add_space(Table& table, const std::string& space) {
  add_of<int8_t, Space>(table, space, ".s8");
  add_of<int16_t, Space>(table, space, ".s16");
  add_of<int32_t, Space>(table, space, ".s32");
  add_of<int64_t, Space>(table, space, ".s64");
  for (const char* kind : {".u", ".b"}) {
    const std::string type = kind;
    add_of<uint8_t, Space>(table, space, type + "8");
    add_of<uint16_t, Space>(table, space, type + "16");
    add_of<uint32_t, Space>(table, space, type + "32");
    add_of<uint64_t, Space>(table, space, type + "64");
  }
  add_of<float, Space>(table, space, ".f32");
  add_of<double, Space>(table, space, ".f64");
}
template <class T, class Space>
void add_atomics(Table& table, const std::string& space, const std::string& bits) {
  const std::string atom = "atom" + space;
  table[atom + ".add.u" + bits] = atomic<T, Space, added<T>>;
  table[atom + ".min.u" + bits] = atomic<T, Space, lesser<T>>;
  table[atom + ".max.u" + bits] = atomic<T, Space, larger<T>>;
  table[atom + ".exch.b" + bits] = atomic<T, Space, exchanged<T>>;
}

void same_address(Thread& t, const Instruction& i) {
  t.set<uint64_t>(i.at[0], t.get<uint64_t>(i.at[1]));
}

}  // namespace

void add_memory(Table& table) {
  for (const char* space : {".param", ".local"}) add_space<HostSpace>(table, space);
  for (const char* space : {"", ".global", ".volatile.global"}) add_space<Global>(table, space);
  for (const char* space : {".shared", ".shared::cta", ".shared::cluster"})
    add_space<Shared>(table, space);
  add_atomics<uint32_t, Global>(table, ".global", "32");
  add_atomics<uint64_t, Global>(table, ".global", "64");
  add_atomics<uint32_t, Shared>(table, ".shared", "32");
  add_atomics<uint64_t, Shared>(table, ".shared", "64");
  table["cvta.to.global.u64"] = table["cvta.global.u64"] = same_address;
  table["cvta.param.u64"] = table["cvta.local.u64"] = table["cvta.to.local.u64"] = same_address;
}

}  // namespace emulator::ptx
