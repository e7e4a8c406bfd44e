#pragma once

#include <memory>

#include "comm/transport.hpp"

namespace muonrt {

/// One rank, alone: what it sends to itself is copied, reductions return their input.
std::unique_ptr<Transport> make_self_transport();

}  // namespace muonrt
