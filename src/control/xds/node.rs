//! Who this proxy is towards the control plane (reference section 4.2).

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use crate::wire::pb::discovery::Node;

/// What the configuration knows of this proxy.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub instance_ip: String,
    /// Empty where unknown.
    pub pod_name: String,
    pub pod_namespace: String,
    pub node_name: Option<String>,
    /// Goes before what is told above.
    pub proxy_metadata: BTreeMap<String, String>,
    /// JSON values; they go before everything else.
    pub node_metadata: BTreeMap<String, serde_json::Value>,
}

/// The node of the first request of each type.
pub fn node(facts: &NodeFacts) -> Node {
    let NodeFacts { instance_ip, pod_name, pod_namespace, node_name, .. } = facts;
    let mut fields = BTreeMap::from([
        ("NAME".to_owned(), text(pod_name)),
        ("NAMESPACE".to_owned(), text(pod_namespace)),
        ("INSTANCE_IPS".to_owned(), text(instance_ip)),
    ]);
    if let Some(node) = node_name {
        fields.insert("NODE_NAME".to_owned(), text(node));
    }
    fields.extend(facts.proxy_metadata.iter().map(|(key, value)| (key.clone(), text(value))));
    fields.extend(facts.node_metadata.iter().map(|(key, value)| (key.clone(), json(value))));
    Node {
        id: format!("ztunnel~{instance_ip}~{pod_name}.{pod_namespace}~{pod_namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields }),
    }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn json(value: &serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(*value),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(json).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_the_references_and_later_metadata_goes_before_earlier() {
        let facts = NodeFacts {
            instance_ip: "10.99.1.1".into(),
            pod_name: "ztunnel-node1".into(),
            pod_namespace: "istio-system".into(),
            node_name: Some("node1".into()),
            proxy_metadata: BTreeMap::from([
                ("CLUSTER_ID".into(), "Kubernetes".into()),
                ("NODE_NAME".into(), "other".into()),
            ]),
            node_metadata: BTreeMap::from([
                ("LABELS".into(), serde_json::json!({"a": [1, true, null]})),
                ("CLUSTER_ID".into(), serde_json::json!("json")),
            ]),
        };
        let node = node(&facts);
        assert_eq!(node.id, "ztunnel~10.99.1.1~ztunnel-node1.istio-system~istio-system.svc.cluster.local");
        let fields = node.metadata.unwrap().fields;
        let names: Vec<_> = fields.keys().map(String::as_str).collect();
        assert_eq!(names, ["CLUSTER_ID", "INSTANCE_IPS", "LABELS", "NAME", "NAMESPACE", "NODE_NAME"]);
        assert_eq!((&fields["NODE_NAME"], &fields["CLUSTER_ID"]), (&text("other"), &text("json")));
        let numbers = vec![Kind::NumberValue(1.0), Kind::BoolValue(true), Kind::NullValue(0)];
        let values = numbers.into_iter().map(|kind| Value { kind: Some(kind) }).collect();
        let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
        let labels = Struct { fields: BTreeMap::from([("a".into(), list)]) };
        assert_eq!(fields["LABELS"], Value { kind: Some(Kind::StructValue(labels)) });
    }
}
