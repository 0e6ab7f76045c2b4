//! The fields of one protobuf message, one after the other, without copying: for messages that are read lazily, and
//! for those where a field that isn't known matters. Numbers and lengths are prost's to decode.

use bytes::Buf as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The names of a message and its fields, by which errors tell them.
pub(super) struct Schema {
    pub message: &'static str,
    pub fields: &'static [(u32, &'static str)],
}

impl Schema {
    /// The name of a field, where it is one of this message's.
    pub fn field(&self, number: u32) -> Option<&'static str> {
        self.fields.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    }
}

/// Bytes that aren't the message they should be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}.{field}: {fault}")]
pub struct Malformed {
    pub message: &'static str,
    /// `?` where not even the field's number could be read.
    pub field: &'static str,
    pub fault: Fault,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("{announced} bytes are announced, {left} are left")]
    CutShort { announced: u64, left: usize },
    #[error("is not UTF-8 text")]
    NotText,
    #[error("has another wire type")]
    WireType,
    #[error("there are more than {0}")]
    TooMany(usize),
}

/// One field as it stands on the wire.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    schema: &'static Schema,
    pub number: u32,
    /// Number, wire type and value as they stand on the wire.
    pub raw: &'a [u8],
    value: Value<'a>,
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Fixed numbers and groups: no message read here has any.
    Other,
}

impl<'a> Field<'a> {
    pub fn name(&self) -> &'static str {
        self.schema.field(self.number).unwrap_or("(unknown)")
    }

    /// The name, or that of the message where the field has none.
    pub fn label(&self) -> &'static str {
        self.schema.field(self.number).unwrap_or(self.schema.message)
    }

    pub fn wrong(&self, fault: Fault) -> Malformed {
        Malformed { message: self.schema.message, field: self.name(), fault }
    }

    pub fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) | Value::Other => Err(self.wrong(Fault::WireType)),
        }
    }

    pub fn text(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.wrong(Fault::NotText))
    }

    pub fn number(&self) -> Result<u64, Malformed> {
        match self.value {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) | Value::Other => Err(self.wrong(Fault::WireType)),
        }
    }

    /// An enumeration: 32 bits, as prost cuts it.
    pub fn word(&self) -> Result<i32, Malformed> {
        #[expect(clippy::cast_possible_truncation, reason = "the wire holds negative values as 64 bits")]
        self.number().map(|number| number as i32)
    }

    /// The numbers of a repeated field, packed or one by one.
    pub fn numbers(&self, mut each: impl FnMut(u64)) -> Result<(), Malformed> {
        match self.value {
            Value::Number(number) => each(number),
            Value::Bytes(mut packed) => {
                while !packed.is_empty() {
                    each(decode_varint(&mut packed).map_err(|error| self.wrong(error.into()))?);
                }
            }
            Value::Other => return Err(self.wrong(Fault::WireType)),
        }
        Ok(())
    }
}

/// Walks over a message. Ends after the first error.
pub(super) struct Fields<'a> {
    schema: &'static Schema,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(schema: &'static Schema, message: &'a [u8]) -> Self {
        Self { schema, rest: message }
    }

    fn read(&mut self) -> Result<Field<'a>, Malformed> {
        let unnamed = |error: prost::DecodeError| Malformed {
            message: self.schema.message,
            field: "?",
            fault: error.into(),
        };
        let start = self.rest;
        let (number, wire_type) = decode_key(&mut self.rest).map_err(unnamed)?;
        let mut field = Field { schema: self.schema, number, raw: &[], value: Value::Other };
        let wrong = |error: prost::DecodeError| field.wrong(error.into());
        match wire_type {
            WireType::Varint => field.value = Value::Number(decode_varint(&mut self.rest).map_err(wrong)?),
            WireType::LengthDelimited => {
                let announced = decode_varint(&mut self.rest).map_err(wrong)?;
                let bytes = usize::try_from(announced).ok().and_then(|length| self.rest.get(..length));
                let left = self.rest.len();
                let bytes = bytes.ok_or_else(|| field.wrong(Fault::CutShort { announced, left }))?;
                self.rest.advance(bytes.len());
                field.value = Value::Bytes(bytes);
            }
            WireType::StartGroup | WireType::EndGroup | WireType::ThirtyTwoBit | WireType::SixtyFourBit => {
                skip_field(wire_type, number, &mut self.rest, DecodeContext::default()).map_err(wrong)?;
            }
        }
        field.raw = start.get(..start.len().saturating_sub(self.rest.len())).unwrap_or_default();
        Ok(field)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}
