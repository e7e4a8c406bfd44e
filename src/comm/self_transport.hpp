#pragma once

#include <memory>

#include "comm/transport.hpp"

namespace muonrt {

/// A transport of one rank: copies the messages that the rank sends to itself; reductions return
/// their input.
std::unique_ptr<Transport> make_self_transport();

}  // namespace muonrt
